"""How the gateway runs, as small groups of values; what it does is the manifest's business.

The only module that reads the environment: the command line fills in the rest.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

ASSIGNMENT_VARIABLE = "SLIPSTREAM_ASSIGNMENT_SECRET"
CACHE_VARIABLE = "SLIPSTREAM_VLLM_HOME"
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class Deadlines(msgspec.Struct, frozen=True, kw_only=True):
    """How long the gateway waits for an upstream. `total_s` covers all attempts of one request.

    A stream that could go on at another server has broken off after `stall_s` without a chunk, any other after
    `between_chunks_s`; a broken one looks for a server for `resume_s`."""

    connect_s: float = 2.0
    first_chunk_s: float = 120.0
    between_chunks_s: float = 60.0
    stall_s: float = 5.0
    resume_s: float = 10.0
    total_s: float = 900.0


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker takes on. Beyond `max_in_flight` requests, `max_queued` wait up to `queue_timeout_s`. It holds
    `max_bodies_bytes` of request bodies at once; those that come in one small piece are not counted."""

    max_body_bytes: int = 4 * 1024 * 1024
    max_bodies_bytes: int = 256 * 1024 * 1024
    max_in_flight: int = 512
    max_queued: int = 512
    queue_timeout_s: float = 5.0
    drain_s: float = 30.0


class HealthSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When a server is left out, per arm; after Envoy's outlier detection.

    At once after `unreachable_in_a_row` attempts that it did not answer, or `failed_in_a_row` that it failed. Within
    `window_s` from `min_requests` on, where `max_error_share` of them failed. Where its median time to the first token,
    of `min_latencies` at least, is both `slow_factor` times and `slow_by_s` above that of the others. It is out for
    `first_ejection_s`, twice as long each time, up to `longest_ejection_s`. The last two causes put out at most
    `max_ejected_share` of a plain arm."""

    unreachable_in_a_row: int = 2
    failed_in_a_row: int = 5
    window_s: float = 10.0
    min_requests: int = 20
    max_error_share: float = 0.5
    min_latencies: int = 10
    slow_factor: float = 4.0
    slow_by_s: float = 0.25
    first_ejection_s: float = 0.5
    longest_ejection_s: float = 15.0
    max_ejected_share: float = 0.5


class OverloadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How many requests run at once, per model pair and worker, within `Limits.max_in_flight`: see
    `director.admission`. Between `min_limit` and that; `adaptive` False: always that. `tolerance` is how many times as
    long as usual a first token may take before the limit falls.

    `retry_share` of the requests may be tried again, and `retries_per_s` besides: see `director.retry_budget`."""

    adaptive: bool = True
    min_limit: int = 16
    tolerance: float = 2.0
    retry_share: float = 0.2
    retries_per_s: float = 10.0


class ConformanceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Whether engines are checked (see `conformance`), and how often again. A check takes `timeout_s` at most. Every
    `probe_s` a server is asked whether it still answers: one that restarts is checked anew."""

    enabled: bool = False
    every_s: float = 600.0
    timeout_s: float = 120.0
    probe_s: float = 10.0


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which signals go out by OTLP; addresses and headers are read by the exporters from the same `OTEL_*`
    variables. `/metrics` is served either way."""

    export_traces: bool = False
    export_metrics: bool = False


class AccessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Who may come in: the file of keys, and that of the pepper that they are hashed under (None: beside it). Without
    a file of keys everybody may."""

    keys: Path | None = None
    pepper: Path | None = None

    @property
    def enabled(self) -> bool:
        return self.keys is not None


class AdminSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The listener of the admin paths. `port` None: none of its own, everything is on one. `open_metrics` lets
    `/metrics` be read there without a key. `kill_switch` lets admins turn the kill switches of a cluster's pairs by
    this process's own account."""

    port: int | None = None
    host: str = "127.0.0.1"
    open_metrics: bool = False
    kill_switch: bool = False


class AuditSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Whether there is an audit log, and its file; None: stdout."""

    is_on: bool = False
    file: Path | None = None


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """PEM files for TLS to upstreams: the authorities that are believed (None: the system's), and the certificate and
    its key that the gateway shows to a server that asks for one (mTLS)."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


class UpstreamSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What upstreams may be, and what they get. `endpoints` are the networks (CIDR) and domain suffixes that manifests
    may name, empty: all but addresses that no model server has. `key_variables` are the environment variables that
    manifests may name for API keys, as patterns. `forwarded_headers` are request headers that go on to upstreams."""

    tls: TlsSettings = TlsSettings()
    endpoints: tuple[str, ...] = ()
    key_variables: tuple[str, ...] = ("*",)
    forwarded_headers: tuple[str, ...] = ()


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """The pod that the gateway runs in."""

    name: str
    uid: str


class KeyGrant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may use an API key: pairs of these namespaces (`*`: all), towards these hosts (`.suffix`: all below it)."""

    namespaces: tuple[str, ...]
    hosts: tuple[str, ...]


class NameGrant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Model names that begin with `prefix` belong to pairs of these namespaces (`*`: all)."""

    prefix: str
    namespaces: tuple[str, ...]


class Grants(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What namespaces of a cluster may use. `api_keys` are by the gateway's environment variable that holds the key. Of
    the `model_names` that fit a name, the longest prefix decides; a name that none fits is open to all."""

    api_keys: dict[str, KeyGrant] = {}
    model_names: tuple[NameGrant, ...] = ()


NO_GRANTS = Grants()


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where a manifest of custom resources is watched. `kubeconfig` None: as a pod of the cluster, by its service
    account. `namespaces` empty: all; `grants` is what they may use. `snapshot` is a file that keeps what is known for
    the next start; without one, `fallback` is a manifest to serve plainly until the cluster is heard. Reports go to
    `report_namespace`; with `pod` known, they go away with it."""

    kubeconfig: Path | None = None
    namespaces: tuple[str, ...] = ()
    snapshot: Path | None = None
    fallback: Path | None = None
    report_namespace: str = "default"
    grants: Grants = NO_GRANTS
    pod: Pod | None = None


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. The routing table comes from the file `manifest`, or from `cluster`. `endpoints` replaces the upstream
    addresses of pairs, by pair name; `local_endpoints` are those of the pairs that name none, None for the manifest's
    own default. With several workers, `metrics_folder` is where they find each other's metrics, and `last_good` is the
    manifest that one starts with while the file is bad. `redis_url` is where replicas share what they saw, None:
    nowhere; it may hold a password, so it is no part of the `repr`, and neither is `assignment_secret`, under which
    request ids choose hold-back, rollout and exploration (None: a random one of each worker). `classifier` is a model
    file of `slipstream train`, None: the one that comes with the package. `state_folder` is where kill switches that an
    admin turns are kept, None: beside the manifest."""

    manifest: Path | None = None
    cluster: ClusterSettings | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    log_level: str = "warning"
    endpoints: Mapping[str, tuple[str, ...]] = {}
    deadlines: Deadlines = Deadlines()
    limits: Limits = Limits()
    health: HealthSettings = HealthSettings()
    overload: OverloadSettings = OverloadSettings()
    conformance: ConformanceSettings = ConformanceSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    local_endpoints: tuple[str, ...] | None = None
    metrics_folder: Path | None = None
    last_good: Path | None = None
    redis_url: str | None = None
    assignment_secret: bytes | None = None
    classifier: Path | None = None
    admin: AdminSettings = AdminSettings()
    access: AccessSettings = AccessSettings()
    upstreams: UpstreamSettings = UpstreamSettings()
    audit: AuditSettings = AuditSettings()
    state_folder: Path | None = None

    def __repr__(self) -> str:
        hidden = msgspec.structs.replace(
            self, redis_url=self.redis_url and "…", assignment_secret=self.assignment_secret and b"..."
        )
        return msgspec.Struct.__repr__(hidden)


def telemetry_settings(environ: Mapping[str, str] = os.environ) -> TelemetrySettings:
    """By the OpenTelemetry specification's variables: a signal is exported where an OTLP endpoint is set for it and
    `OTEL_SDK_DISABLED` or `OTEL_{TRACES,METRICS}_EXPORTER=none` does not say otherwise."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return TelemetrySettings()
    return TelemetrySettings(
        export_traces=_exports(environ, "TRACES"),
        export_metrics=_exports(environ, "METRICS"),
    )


def _exports(environ: Mapping[str, str], signal: str) -> bool:
    exporters = [part.strip() for part in environ.get(f"OTEL_{signal}_EXPORTER", "otlp").split(",")]
    endpoint = environ.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT") or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    return "otlp" in exporters and bool(endpoint)


def secret(name: str) -> str | None:
    """The environment variable that a manifest names for an API key; None where it is unset or empty."""
    return os.environ.get(name) or None


def redis_url(environ: Mapping[str, str] = os.environ) -> str | None:
    """Where replicas share what they saw: `SLIPSTREAM_REDIS_URL`; None where it is unset or empty."""
    return environ.get("SLIPSTREAM_REDIS_URL") or None


def assignment_secret(environ: Mapping[str, str] = os.environ) -> str | None:
    """Under which request ids are assigned: `SLIPSTREAM_ASSIGNMENT_SECRET`; None where it is unset or empty."""
    return environ.get(ASSIGNMENT_VARIABLE) or None


def pod(environ: Mapping[str, str] = os.environ) -> Pod | None:
    """The pod that this process runs in, by `POD_NAME` and `POD_UID`; None where they are not both set."""
    name, uid = environ.get("POD_NAME"), environ.get("POD_UID")
    return Pod(name=name, uid=uid) if name and uid else None


def own_namespace(environ: Mapping[str, str] = os.environ) -> str | None:
    """The namespace that this process runs in, by `POD_NAMESPACE` or what every pod is given; None outside of one."""
    if named := environ.get("POD_NAMESPACE"):
        return named
    try:
        return _NAMESPACE_FILE.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def default_kubeconfig(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The kubeconfig to use where none is given: None within a cluster, else `KUBECONFIG` or the user's own."""
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    return Path(environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where `slipstream up` keeps what it installs, converts or makes once: `$SLIPSTREAM_VLLM_HOME`, else `slipstream`
    in the user's cache folder; absolute, perhaps not there yet."""
    if home := environ.get(CACHE_VARIABLE):
        return Path(home).expanduser().absolute()
    cache = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser().absolute() / "slipstream"
