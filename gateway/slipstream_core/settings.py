"""Settings of a gateway process, in small groups. The manifest configures behaviour; settings configure the process.

A field with `option(...)` is a command-line option: name, type, default and help are generated from the field (see
`arguments`). `environment` reads those that come from environment variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from slipstream_core import logs
from slipstream_core.arguments import (
    AboveOne,
    AtLeastOne,
    File,
    ListenAddress,
    NotNegative,
    OnOff,
    PortOrAny,
    Seconds,
    Share,
    option,
)

# Options of `slipstream gateway` that `slipstream up` has, too.
KeyFile = Annotated[
    File | None,
    option(
        "API keys, limits and token issuers, as 'slipstream keys' writes them; reloaded on change (default: everybody "
        "who reaches the gateway may use it)",
        "--keys",
    ),
]
Workers = Annotated[
    AtLeastOne,
    option("gateways that serve the port, each with an admin port: --admin-port and the ones after it"),
]
Redis = Annotated[
    str | None,
    option(
        "Redis where replicas share measurements, redis://host:port/db; put a URL with a password into "
        "SLIPSTREAM_REDIS_URL instead (default: every worker learns alone)",
        "--redis",
        metavar="URL",
    ),
]
Classifier = Annotated[File | None, option("classifier from 'slipstream train' (default: the one in the package)")]
CaptureStore = Annotated[
    str | None,
    option(
        "folder, or s3://BUCKET/PREFIX, for the answers that policies with 'capture' keep for training drafts "
        "(default: none are kept)",
        "--capture-store",
        metavar="FOLDER|URL",
    ),
]


class Deadlines(msgspec.Struct, frozen=True, kw_only=True):
    """Time limits of one request to an upstream."""

    connect_s: Annotated[Seconds, option("deadline for connecting to an upstream", "--connect-timeout")] = 2.0
    first_chunk_s: Annotated[Seconds, option("deadline for the first chunk of a stream", "--first-chunk-timeout")] = (
        120.0
    )
    between_chunks_s: Annotated[Seconds, option("deadline between two chunks of a stream", "--chunk-timeout")] = 60.0
    stall_s: Annotated[
        Seconds,
        option("deadline between two chunks of a stream that another server can resume", "--stall-timeout"),
    ] = 5.0
    resume_s: Annotated[
        Seconds, option("time limit for finding a server that resumes a broken stream", "--resume-timeout")
    ] = 10.0
    total_s: Annotated[Seconds, option("deadline for a whole request, all attempts included", "--total-timeout")] = (
        900.0
    )


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Capacity of one gateway. Bodies that arrive in one small piece do not count towards `max_bodies_bytes`."""

    max_body_bytes: Annotated[AtLeastOne, option("largest request body")] = 4 * 1024 * 1024
    max_bodies_bytes: Annotated[AtLeastOne, option("memory for request bodies; beyond it: 429")] = 256 * 1024 * 1024
    max_in_flight: Annotated[AtLeastOne, option("requests that run at once")] = 512
    max_queued: Annotated[
        NotNegative, option("requests that wait for a slot (beyond it: 429), and for a first server (503)")
    ] = 512
    queue_timeout_s: Annotated[Seconds, option("longest wait for a slot")] = 5.0
    leave_s: Annotated[
        NotNegative,
        option(
            "time after SIGTERM in which requests are accepted, and each response closes its connection",
            metavar="SECONDS",
        ),
    ] = 0
    drain_s: Annotated[Seconds, option("time for open streams to finish after that")] = 30.0


class HealthSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions that eject a server from its arm, after Envoy's outlier detection.

    A server is ejected at once after `unreachable_in_a_row` unanswered or `failed_in_a_row` failed attempts. It is also
    ejected if, within `window_s`, `max_error_share` of at least `min_requests` attempts failed; or if its median time
    to first token over at least `min_latencies` samples is both `slow_factor` times and `slow_by_s` above that of the
    other servers. These last two causes eject at most `max_ejected_share` of a plain arm. An ejection lasts
    `first_ejection_s`, and doubles each time up to `longest_ejection_s`."""

    unreachable_in_a_row: int = 2
    failed_in_a_row: int = 5
    window_s: float = 10.0
    min_requests: int = 20
    max_error_share: Annotated[Share, option("share of failed attempts that ejects a server")] = 0.5
    min_latencies: int = 10
    slow_factor: Annotated[
        AboveOne, option("ratio of a server's time to first token to that of the others that ejects it")
    ] = 4.0
    slow_by_s: float = 0.25
    first_ejection_s: float = 0.5
    longest_ejection_s: float = 15.0
    max_ejected_share: float = 0.5


class OverloadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Concurrency limit per model pair and gateway, between `min_limit` and `Limits.max_in_flight` (see
    `slipstream_gateway.admission`), and the retry budget (see `request.retry_budget`).

    The limit falls when a first token takes `tolerance` times as long as usual. The budget is `retry_share` of the
    requests plus `retries_per_s`."""

    adaptive: Annotated[
        OnOff,
        option("reduce the concurrency limit of a pair while its time to first token is high", "--adaptive-limit"),
    ] = True
    min_limit: Annotated[AtLeastOne, option("lowest concurrency limit of a pair")] = 16
    tolerance: float = 2.0
    retry_share: Annotated[Share, option("share of requests that may be retried; 0: no retries at all")] = 0.2
    retries_per_s: float = 10.0


class ConformanceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Engine checks (see `conformance`). A check takes at most `timeout_s`. After one that takes longer, the next one
    may take twice as long, up to eight times `timeout_s`. Each server is probed every `probe_s`; a restarted server is
    checked again."""

    enabled: Annotated[
        OnOff,
        option(
            "check that speculation does not change answers, and withhold it from servers where it does; off: trust "
            "every engine",
            "--conformance",
            default=True,
        ),
    ] = False
    every_s: Annotated[
        Seconds, option("time between two checks of a server, with 25% jitter", "--conformance-every")
    ] = 600.0
    timeout_s: float = 120.0
    probe_s: float = 10.0


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Signals exported by OTLP. The exporters read addresses and headers from the `OTEL_*` variables. `/metrics` is
    always served."""

    export_traces: bool = False
    export_metrics: bool = False


class AccessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Authentication. Without a key file, every client is let in."""

    keys: KeyFile = None
    pepper: Annotated[
        File | None, option("pepper under which the keys are hashed (default: FILE.pepper beside the keys)")
    ] = None

    @property
    def enabled(self) -> bool:
        return self.keys is not None


class AdminSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Listener of the admin paths. `port` None: they are served on the public port."""

    port: Annotated[
        PortOrAny | None,
        option("separate port for the admin paths, 0 for a free one (default: --port)", "--admin-port"),
    ] = None
    host: Annotated[str, option("address of the admin port", "--admin-host", metavar="HOST")] = "127.0.0.1"
    open_metrics: Annotated[bool, option("serve /metrics on the admin port without a key, for Prometheus")] = False
    kill_switch: Annotated[
        bool,
        option(
            "with --source kubernetes and --keys: admins turn kill switches of pairs in the console, by this process's "
            "service account"
        ),
    ] = False


class AuditSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The audit log; `file` None: stdout."""

    is_on: bool = False
    file: Annotated[
        Path | None,
        option(
            "audit log: decisions and events as JSON lines, without prompts; - for stdout (default: none)",
            "--audit-log",
            type=str,
            metavar="FILE",
        ),
    ] = None


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """PEM files for TLS to upstreams; they are reloaded on change."""

    ca: Annotated[
        File | None, option("CA bundle for verifying upstream TLS (default: the system's)", "--upstream-ca")
    ] = None
    certificate: Annotated[
        File | None, option("PEM client certificate for upstreams that require mTLS", "--upstream-cert")
    ] = None
    key: Annotated[
        File | None, option("PEM key of --upstream-cert; all three files are reloaded on change", "--upstream-key")
    ] = None


class UpstreamSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Upstream addresses and environment variables that manifests may name, and headers passed to upstreams. Empty
    `endpoints`: every address except those that no model server has, such as link-local ones."""

    tls: TlsSettings = TlsSettings()
    endpoints: Annotated[
        tuple[str, ...],
        option(
            "network or domain of servers that manifests may name (10.0.0.0/8, .models.svc), to the exclusion of all "
            "others; may be repeated",
            "--allow-endpoint",
            metavar="CIDR|SUFFIX",
        ),
    ] = ()
    key_variables: Annotated[
        tuple[str, ...],
        option(
            "pattern of environment variables that manifests may name in apiKeyEnv; may be repeated (default: all with "
            "a manifest file; *_API_KEY and those of --grants with --source kubernetes)",
            "--allow-key-env",
            metavar="PATTERN",
        ),
    ] = ("*",)
    forwarded_headers: Annotated[
        tuple[str, ...],
        option("request header to forward to HTTP upstreams; may be repeated", "--forward-header", metavar="NAME"),
    ] = ()


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """The pod that the gateway runs in."""

    name: str
    uid: str


class KeyGrant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Permission to use an API key: for pairs in these namespaces (`*`: all), towards these hosts (`.suffix`: all
    subdomains)."""

    namespaces: tuple[str, ...]
    hosts: tuple[str, ...]


class NameGrant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Model names that begin with `prefix` belong to pairs of these namespaces (`*`: all)."""

    prefix: str
    namespaces: tuple[str, ...]


class Grants(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Permissions of namespaces in a cluster. `api_keys` is keyed by the gateway's environment variable that holds the
    key. The longest matching prefix in `model_names` decides; a name without a match is open to all."""

    api_keys: dict[str, KeyGrant] = {}
    model_names: tuple[NameGrant, ...] = ()


NO_GRANTS = Grants()


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster whose custom resources are watched. `kubeconfig` None: the pod's service account. Empty `namespaces`:
    all. Without a snapshot, the manifest `fallback` is served plainly until the cluster answers. Reports are owned by
    `pod`, if known, and deleted with it."""

    namespaces: Annotated[
        tuple[str, ...],
        option("namespace to watch; may be repeated (default: all)", "--namespace", metavar="NS"),
    ] = ()
    kubeconfig: Annotated[
        File | None,
        option("kubeconfig (default: the service account in a pod, else KUBECONFIG or ~/.kube/config)"),
    ] = None
    snapshot: Annotated[
        File | None, option("cache of the last cluster state, used when the API is unreachable at startup")
    ] = None
    fallback: Path | None = None
    report_namespace: Annotated[
        str,
        option(
            "namespace for this gateway's reports (default: its own; outside of a cluster: default)",
            metavar="NS",
            default=None,
        ),
    ] = "default"
    grants: Annotated[
        Grants,
        option(
            "API keys, with their hosts, and model names that each namespace may use; read at startup (default: "
            "ModelPairs with apiKeyEnv are refused)",
            type=Path,
            metavar="FILE",
            default=None,
        ),
    ] = NO_GRANTS
    pod: Pod | None = None


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings. The routing table comes from the file `manifest` or from `cluster`. `endpoints` replaces the
    upstream addresses of pairs, by pair name. With several workers, `workers_folder` has their last valid files, and
    `last_good` is the manifest to start with while the file is invalid. Secrets (`redis_url` may hold a password) are
    not in the `repr`."""

    manifest: Annotated[
        File | None,
        option(
            "ModelPairs and policies; with --source kubernetes: served plainly until the cluster answers",
            "-f",
            "--manifest",
        ),
    ] = None
    cluster: ClusterSettings | None = None
    endpoints: Annotated[
        Mapping[str, tuple[str, ...]],
        option(
            "upstream address of a pair instead of the manifest's, e.g. acme=grpc://host:8001; may be repeated",
            "--endpoint",
            action="append",
            metavar="PAIR=URL",
        ),
    ] = {}
    local_endpoints: Annotated[
        tuple[str, ...] | None,
        option(
            "upstream address of pairs without one: Triton's (grpc://127.0.0.1:8001) or vLLM's "
            "(http://127.0.0.1:8000); may be repeated",
            "--local-endpoint",
            metavar="URL",
        ),
    ] = None
    host: Annotated[str, option("address to listen on, :: for every IPv4 and IPv6 address")] = "127.0.0.1"
    port: Annotated[PortOrAny, option("port to listen on, 0 for a free one")] = 8080
    ext_proc: Annotated[
        ListenAddress | None,
        option(
            "address of the ext_proc filter for Envoy, HOST:PORT or unix:/PATH (default: none; with 'slipstream "
            "extproc' 127.0.0.1:9002)"
        ),
    ] = None
    workers: Workers = 1
    redis_url: Redis = None
    classifier: Classifier = None
    state_folder: Annotated[
        File | None,
        option("folder of the file of kill switches (default: beside the manifest)", metavar="FOLDER"),
    ] = None
    capture_store: CaptureStore = None
    log_level: Annotated[str, option("least severe messages to log", choices=logs.LEVELS)] = "warning"
    log_format: Annotated[str, option("form of log lines: text, or JSON for collectors", choices=logs.FORMATS)] = "text"
    deadlines: Deadlines = Deadlines()
    limits: Limits = Limits()
    health: HealthSettings = HealthSettings()
    overload: OverloadSettings = OverloadSettings()
    conformance: ConformanceSettings = ConformanceSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    workers_folder: Path | None = None
    last_good: Path | None = None
    admin: AdminSettings = AdminSettings()
    access: AccessSettings = AccessSettings()
    upstreams: UpstreamSettings = UpstreamSettings()
    audit: AuditSettings = AuditSettings()

    def __repr__(self) -> str:
        hidden = msgspec.structs.replace(self, redis_url=self.redis_url and "…")
        return msgspec.Struct.__repr__(hidden)
