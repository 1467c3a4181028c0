"""`slipstream gateway`: serves a manifest, from a file or from a cluster."""

from __future__ import annotations

import argparse
import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path

from slipstream_gateway.arguments import at_least_one, not_negative, port_or_any, seconds
from slipstream_gateway.classify import load_model
from slipstream_gateway.errors import CommandError
from slipstream_gateway.manifest import Protocol, RoutingTable, check_address, compile_file, read_file
from slipstream_gateway.settings import (
    ClusterSettings,
    Deadlines,
    GatewaySettings,
    Limits,
    default_kubeconfig,
    own_namespace,
    pod,
    redis_url,
    telemetry_settings,
)

_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LEVELS = ("critical", "error", "warning", "info", "debug")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    limits, deadlines = Limits(), Deadlines()
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
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument(
        "--port", type=port_or_any, default=8080, help="port to listen on, 0 for a free one (%(default)s)"
    )
    parser.add_argument("--workers", type=at_least_one, default=1, metavar="N", help="processes (%(default)s)")
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
        help="Triton's address for pairs that name none (grpc://127.0.0.1:8001); may be repeated",
    )
    parser.add_argument(
        "--redis",
        metavar="URL",
        help="where replicas share what they measure, redis://host:port/db; a URL with a password is better put into "
        "SLIPSTREAM_REDIS_URL (without either: every worker learns by itself)",
    )
    parser.add_argument(
        "--classifier",
        type=Path,
        metavar="FILE",
        help="a model that 'slipstream train' wrote (without it, the one that comes with the package)",
    )
    _add_cluster_arguments(parser)
    group = parser.add_argument_group("limits of one worker")
    for name, kind, default, text in (
        ("--max-body-bytes", at_least_one, limits.max_body_bytes, "largest request body"),
        ("--max-in-flight", at_least_one, limits.max_in_flight, "requests that run at once"),
        ("--max-queued", not_negative, limits.max_queued, "requests that wait for a place; beyond it: 429"),
        ("--queue-timeout", seconds, limits.queue_timeout_s, "longest wait for a place, in seconds"),
        ("--drain", seconds, limits.drain_s, "how long streams may finish after SIGTERM, in seconds"),
        ("--connect-timeout", seconds, deadlines.connect_s, "deadline to reach an upstream, in seconds"),
        ("--first-chunk-timeout", seconds, deadlines.first_chunk_s, "deadline of a stream's first chunk"),
        ("--chunk-timeout", seconds, deadlines.between_chunks_s, "deadline between two chunks"),
        ("--total-timeout", seconds, deadlines.total_s, "deadline of a whole request"),
    ):
        group.add_argument(name, type=kind, default=default, metavar="N", help=f"{text} (%(default)s)")
    parser.add_argument("--log-level", choices=_LEVELS, default="warning", help="what is logged (%(default)s)")


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


def run(args: argparse.Namespace) -> int:
    _check_source(args)
    data = read_file(args.manifest) if args.manifest is not None else None
    # A bad manifest fails here with one clear message, not inside a worker.
    table = compile_file(args.manifest, data) if data is not None else None
    settings = _settings(args, table)
    _check_redis(settings.redis_url)
    if settings.classifier is not None:
        load_model(settings.classifier)
    from slipstream_gateway.serve import serve  # uvicorn and the rest load only for a manifest that is good

    serve(settings, manifest=data)
    return 0


def _check_source(args: argparse.Namespace) -> None:
    """Raises `CommandError` where options do not fit the source, or its package is missing."""
    if args.source == "file":
        if args.manifest is None:
            raise CommandError("-f FILE is required, unless --source kubernetes is given.", exit_code=2)
        for option in ("namespace", "kubeconfig", "snapshot", "report_namespace"):
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


def _cluster(args: argparse.Namespace) -> ClusterSettings | None:
    """Where the cluster is. Raises `CommandError` where nothing says it."""
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
        pod=pod(),
    )


def _settings(args: argparse.Namespace, table: RoutingTable | None) -> GatewaySettings:
    cluster = _cluster(args)
    return GatewaySettings(
        manifest=args.manifest.absolute() if cluster is None else None,
        cluster=cluster,
        host=args.host,
        port=args.port,
        workers=args.workers,
        log_level=args.log_level,
        endpoints=_endpoints(args.endpoint, table) if table is not None else {},
        local_endpoints=tuple(args.local_endpoint) if args.local_endpoint else None,
        deadlines=Deadlines(
            connect_s=args.connect_timeout,
            first_chunk_s=args.first_chunk_timeout,
            between_chunks_s=args.chunk_timeout,
            total_s=args.total_timeout,
        ),
        limits=Limits(
            max_body_bytes=args.max_body_bytes,
            max_in_flight=args.max_in_flight,
            max_queued=args.max_queued,
            queue_timeout_s=args.queue_timeout,
            drain_s=args.drain,
        ),
        telemetry=telemetry_settings(),
        redis_url=args.redis or redis_url(),
        classifier=args.classifier.absolute() if args.classifier else None,
    )


def _check_redis(url: str | None) -> None:
    """Raises `CommandError` where the address is no address, or the package that speaks to it is missing."""
    if url is None:
        return
    from slipstream_gateway.stores.redis_url import parse_redis_url

    parse_redis_url(url)
    if importlib.util.find_spec("redis") is None:
        raise CommandError("--redis needs the package 'redis': install 'slipstream-serving[redis]'.")


def _endpoints(values: Sequence[str], table: RoutingTable) -> dict[str, tuple[str, ...]]:
    """`PAIR=URL` options by pair."""
    routes = {route.pair.metadata.name: route for route in table.routes.values()}
    found: dict[str, tuple[str, ...]] = {}
    for value in values:
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
    if message := check_address(text, Protocol.TRITON):
        raise argparse.ArgumentTypeError(f"the address {message}, got {text!r}")
    return text
