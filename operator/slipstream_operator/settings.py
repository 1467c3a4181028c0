"""Settings of the operator's process. A field with `option(...)` is a command-line option: see `arguments`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Annotated

import msgspec
from slipstream_core.arguments import AtLeastOne, File, Port, Seconds, option
from slipstream_core.manifest.naming import label_value
from slipstream_core.settings import NO_GRANTS, Grants

from slipstream_operator.types import DEFAULT_IMAGE, DEFAULT_VLLM_IMAGE, KubeObject

LEASE_NAME = "slipstream-operator"
LIVENESS_PORT = 8081
METRICS_PORT = 9090
RESYNC_S = 600.0
KINDS_EVERY_S = 30.0
PATIENCE_S = 120.0
WORKERS = 16


def _label(text: str) -> str:
    """A label's value."""
    if re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", text) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r}: letters, digits, dots and dashes, with a letter or digit at both ends"
        )
    return text


def _http_url(text: str) -> str:
    if re.fullmatch(r"https?://[^/@?#\s]+(/[^?#\s]*)?", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r}: expected http(s)://host[:port][/path] without credentials")
    return text


def _ingress_rules(text: str) -> tuple[KubeObject, ...]:
    try:
        return msgspec.json.decode(text, type=tuple[KubeObject, ...])
    except msgspec.MsgspecError as exc:
        raise argparse.ArgumentTypeError(f"expected a list of objects in JSON: {exc}") from exc


class OperatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`release` names this installation; None: by its namespace. Empty `namespaces`: all. `report_namespace` and
    `lease_namespace` None: the operator's own. For `server_ingress` see `ServingDefaults`."""

    namespaces: Annotated[
        tuple[str, ...],
        option("namespace of pairs to serve; may be repeated (default: all)", "-n", "--namespace", metavar="NS"),
    ] = ()
    release: Annotated[
        str | None,
        option(
            "name of this installation, a label of its objects; a namespace that another installation manages is left "
            "unchanged (default: NAMESPACE.slipstream, with the operator's own namespace)",
            type=_label,
            metavar="NAME",
        ),
    ] = None
    report_namespace: Annotated[
        str | None, option("namespace of the gateways' reports (default: the operator's own)", metavar="NS")
    ] = None
    grants: Annotated[
        Grants,
        option(
            "API keys and model names that each namespace may use, the same file as the gateways' (default: no keys)",
            type=Path,
            metavar="FILE",
            default=None,
        ),
    ] = NO_GRANTS
    kubeconfig: Annotated[
        File | None, option("kubeconfig (default: the service account in a pod, else the usual one)")
    ] = None
    context: Annotated[str | None, option("context of the kubeconfig (default: its current one)", metavar="NAME")] = (
        None
    )
    redis_url: Annotated[
        str | None,
        option(
            "Redis where gateways share outcomes, redis://host:port/db; put a URL with a password into "
            "SLIPSTREAM_REDIS_URL instead (default: none; nothing is promoted without outcomes)",
            "--redis",
            metavar="URL",
        ),
    ] = None
    image: Annotated[
        str,
        option(
            "image of Triton with Slipstream's engine, for pairs that name none",
            "--triton-image",
            "--image",
            dest="triton_image",
            metavar="IMAGE",
        ),
    ] = DEFAULT_IMAGE
    vllm_image: Annotated[
        str,
        option("image of vLLM with Slipstream's plugin, for pairs that name none", metavar="IMAGE"),
    ] = DEFAULT_VLLM_IMAGE
    server_ingress: Annotated[
        tuple[KubeObject, ...] | None,
        option(
            "ingress rules, as a list, of a NetworkPolicy for each pair's servers (default: no policy)",
            action="store",
            type=_ingress_rules,
            metavar="JSON",
        ),
    ] = None
    prometheus_url: Annotated[
        str | None,
        option(
            "Prometheus for the ScaledObjects of pairs with serving.autoscaling, where the cluster has KEDA, such as "
            "http://prometheus.monitoring:9090 (default: none; HorizontalPodAutoscalers are made)",
            type=_http_url,
            metavar="URL",
        ),
    ] = None
    check_endpoints: Annotated[
        tuple[str, ...],
        option(
            "network or domain that checks of new revisions may name (10.0.0.0/8, .checks.svc), to the exclusion of "
            "all others; may be repeated (default: all but link-local addresses, metadata services and the loopback)",
            "--allow-endpoint",
            metavar="CIDR|SUFFIX",
        ),
    ] = ()
    forbid_pod_privileges: Annotated[
        bool,
        option(
            "refuse pairs that give their pods an account or its annotations, capabilities, the node's network, or "
            "volumes that the restricted Pod Security Standard does not permit"
        ),
    ] = False
    host: Annotated[str, option("address of the next two ports", default="::")] = "127.0.0.1"
    liveness_port: Annotated[Port, option("port of /healthz")] = LIVENESS_PORT
    metrics_port: Annotated[Port, option("port of /metrics and /ready")] = METRICS_PORT
    leader_election: Annotated[bool, option("elect one active operator among several")] = False
    lease: Annotated[
        str, option("name of the leader's Lease, one for each release in its namespace", metavar="NAME")
    ] = LEASE_NAME
    lease_namespace: Annotated[
        str | None, option("namespace of the leader's Lease (default: the operator's own)", metavar="NS")
    ] = None
    resync_s: Annotated[Seconds, option("interval at which all objects are listed and reconciled")] = RESYNC_S
    kinds_every_s: Annotated[
        Seconds, option("interval at which it looks for kinds of other projects, such as LeaderWorkerSet")
    ] = KINDS_EVERY_S
    workers: Annotated[AtLeastOne, option("objects reconciled at once")] = WORKERS
    patience_s: Annotated[
        Seconds, option("time for which the API server may fail before the process exits to be restarted")
    ] = PATIENCE_S

    def at(self, namespace: str) -> OperatorSettings:
        """These settings with the defaults of an operator in `namespace`."""
        return msgspec.structs.replace(
            self,
            release=label_value(self.release or f"{namespace}.slipstream"),
            report_namespace=self.report_namespace or namespace,
            lease_namespace=self.lease_namespace or namespace,
        )
