"""Where ModelPairs and policies come from: a manifest file, or a cluster."""

from __future__ import annotations

import argparse
import importlib.util
import re
from pathlib import Path

from slipstream_core.errors import CommandError
from slipstream_core.manifest import RoutingTable, WireProtocol, check_address
from slipstream_core.manifest.grants import read_grants
from slipstream_core.settings import NO_GRANTS, ClusterSettings, default_kubeconfig, own_namespace, pod

_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--source",
        choices=("file", "kubernetes"),
        default="file",
        help="where ModelPairs and policies come from: the file of -f, or a cluster's API (%(default)s)",
    )
    parser.add_argument(
        "-f",
        "--manifest",
        type=Path,
        metavar="FILE",
        help="ModelPairs and policies; with --source kubernetes what is served, plainly, until the cluster is heard",
    )
    parser.add_argument(
        "--endpoint",
        action="append",
        default=[],
        metavar="PAIR=URL",
        help="upstream address of a pair instead of the manifest's, e.g. acme=grpc://host:8001; may be repeated",
    )
    parser.add_argument(
        "--local-endpoint",
        action="append",
        type=_local_endpoint,
        metavar="URL",
        help="address of a server for pairs that name none: Triton's (grpc://127.0.0.1:8001) or vLLM's "
        "(http://127.0.0.1:8000); may be repeated",
    )
    _add_cluster_arguments(parser)


def _add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("with --source kubernetes")
    group.add_argument(
        "--namespace",
        action="append",
        default=[],
        metavar="NS",
        help="namespace to watch; may be repeated (without it: all of them)",
    )
    group.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="how to reach the cluster (within one: the pod's service account; else KUBECONFIG or ~/.kube/config)",
    )
    group.add_argument(
        "--snapshot", type=Path, metavar="FILE", help="keeps what is known, for a start without the cluster's API"
    )
    group.add_argument(
        "--report-namespace",
        metavar="NS",
        help="where this gateway reports what it has applied (its own namespace; outside of a cluster: default)",
    )
    group.add_argument(
        "--grants",
        type=Path,
        metavar="FILE",
        help="which namespaces may use which API keys, towards which hosts, and which model names (without it, "
        "ModelPairs with apiKeyEnv are refused); read at the start",
    )


def check(args: argparse.Namespace) -> None:
    """Raises `CommandError` where options do not fit the source, or its package is missing."""
    if args.source == "file":
        if args.manifest is None:
            raise CommandError("-f FILE is required, unless --source kubernetes is given.", exit_code=2)
        for option in ("namespace", "kubeconfig", "snapshot", "report_namespace", "grants"):
            if getattr(args, option):
                name = option.replace("_", "-")
                raise CommandError(f"--{name} is for --source kubernetes, not for a manifest file.", exit_code=2)
        return
    for option in ("endpoint", "local_endpoint"):
        if getattr(args, option):
            name = option.replace("_", "-")
            raise CommandError(f"--{name} is for a manifest file, not for --source kubernetes.", exit_code=2)
    for namespace in (*args.namespace, *filter(None, (args.report_namespace,))):
        if not _NAMESPACE.fullmatch(namespace):
            raise CommandError(f"--namespace and --report-namespace: no namespace has the name {namespace!r}.")
    if importlib.util.find_spec("kubernetes") is None:
        message = "--source kubernetes needs the package 'kubernetes': install 'slipstream-serving[kubernetes]'."
        raise CommandError(message)


def cluster_of(args: argparse.Namespace) -> ClusterSettings | None:
    """Where the cluster is, None for a manifest file. Raises `CommandError` where nothing says it."""
    if args.source != "kubernetes":
        return None
    kubeconfig = args.kubeconfig or default_kubeconfig()
    if kubeconfig is not None and not kubeconfig.is_file():
        raise CommandError(f"no cluster: this is not a pod of one, and there is no kubeconfig file {kubeconfig}.")
    return ClusterSettings(
        kubeconfig=kubeconfig.absolute() if kubeconfig is not None else None,
        namespaces=tuple(dict.fromkeys(args.namespace)),
        snapshot=args.snapshot.absolute() if args.snapshot else None,
        fallback=args.manifest.absolute() if args.manifest else None,
        report_namespace=args.report_namespace or own_namespace() or "default",
        grants=read_grants(args.grants) if args.grants else NO_GRANTS,
        pod=pod(),
    )


def endpoints_of(args: argparse.Namespace, table: RoutingTable) -> dict[str, tuple[str, ...]]:
    """`PAIR=URL` options by pair."""
    routes = {route.pair.metadata.name: route for route in table.routes.values()}
    found: dict[str, tuple[str, ...]] = {}
    for value in args.endpoint:
        pair, separator, url = value.partition("=")
        if not separator:
            raise CommandError(f"--endpoint {value}: expected PAIR=grpc://host:port or PAIR=http://…", exit_code=2)
        if pair not in routes:
            raise CommandError(f"--endpoint {value}: the manifest has no ModelPair '{pair}'.", exit_code=2)
        for arm in filter(None, (routes[pair].plain, routes[pair].speculative)):
            if message := check_address(url, arm.protocol):
                raise CommandError(f"--endpoint {pair}=…: the address {message}.", exit_code=2)
        found[pair] = (*found.get(pair, ()), url)
    return found


def _local_endpoint(text: str) -> str:
    protocol = WireProtocol.OPENAI if text.startswith(("http://", "https://")) else WireProtocol.TRITON
    if message := check_address(text, protocol):
        raise argparse.ArgumentTypeError(f"the address {message}, got {text!r}")
    return text
