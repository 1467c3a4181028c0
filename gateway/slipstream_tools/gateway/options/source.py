"""Sources of ModelPairs and policies, a manifest file or a cluster, and the Redis that replicas share."""

from __future__ import annotations

import argparse
import importlib.util
import re

from slipstream_core.arguments import add_options, read_options
from slipstream_core.environment import pod, redis_url
from slipstream_core.errors import CommandError
from slipstream_core.installation import how_to_install
from slipstream_core.kube.environment import default_kubeconfig, own_namespace
from slipstream_core.manifest import RoutingTable, WireProtocol, check_address
from slipstream_core.manifest.grants import read_grants
from slipstream_core.settings import NO_GRANTS, ClusterSettings, GatewaySettings

_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--source",
        choices=("file", "kubernetes"),
        default="file",
        help="source of ModelPairs and policies: the file of -f, or a cluster's API (default: %(default)s)",
    )
    add_options(parser, GatewaySettings, types={"local_endpoints": _local_endpoint})
    add_options(parser.add_argument_group("with --source kubernetes"), ClusterSettings)


def check(args: argparse.Namespace) -> None:
    """Raises `CommandError` if options do not fit the source, or its package is missing."""
    if args.source == "file":
        if args.manifest is None:
            raise CommandError("-f FILE is required, unless --source kubernetes is given.", exit_code=2)
        _refuse(args, ("namespace", "kubeconfig", "snapshot", "report_namespace", "grants"), "--source kubernetes")
        return
    _refuse(args, ("endpoint", "local_endpoint"), "a manifest file")
    for namespace in (*(args.namespace or ()), *filter(None, (args.report_namespace,))):
        if not _NAMESPACE.fullmatch(namespace):
            raise CommandError(f"--namespace and --report-namespace: no namespace has the name {namespace!r}.")
    if importlib.util.find_spec("kubernetes") is None:
        message = f"--source kubernetes needs the package 'kubernetes'; {how_to_install('kubernetes')}"
        raise CommandError(message)


def _refuse(args: argparse.Namespace, options: tuple[str, ...], source: str) -> None:
    """Raises `CommandError` if one of `options` is given; they are for `source`."""
    other = "a manifest file" if source == "--source kubernetes" else "--source kubernetes"
    for option in options:
        if getattr(args, option):
            raise CommandError(f"--{option.replace('_', '-')} is for {source}, not for {other}.", exit_code=2)


def cluster_of(args: argparse.Namespace) -> ClusterSettings | None:
    """The cluster; None for a manifest file. Raises `CommandError` if no cluster is known."""
    if args.source != "kubernetes":
        return None
    kubeconfig = args.kubeconfig or default_kubeconfig()
    if kubeconfig is not None and not kubeconfig.is_file():
        raise CommandError(f"no cluster: this is not a pod of one, and there is no kubeconfig file {kubeconfig}.")
    return read_options(
        args,
        ClusterSettings,
        kubeconfig=kubeconfig.absolute() if kubeconfig is not None else None,
        namespaces=tuple(dict.fromkeys(args.namespace or ())),
        fallback=args.manifest.absolute() if args.manifest else None,
        report_namespace=args.report_namespace or own_namespace() or "default",
        grants=read_grants(args.grants) if args.grants else NO_GRANTS,
        pod=pod(),
    )


def endpoints_of(args: argparse.Namespace, table: RoutingTable) -> dict[str, tuple[str, ...]]:
    """The URLs of `--endpoint PAIR=URL`, by pair. Raises `CommandError`."""
    routes = {route.pair.metadata.name: route for route in table.routes.values()}
    found: dict[str, tuple[str, ...]] = {}
    for value in args.endpoint or ():
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


def redis_of(args: argparse.Namespace) -> str | None:
    """The URL. Raises `CommandError` if it is invalid, or the package is missing."""
    url: str | None = args.redis or redis_url()
    if url is None:
        return None
    from slipstream_core.redis.redis_url import parse_redis_url

    parse_redis_url(url)
    if importlib.util.find_spec("redis") is None:
        raise CommandError(f"--redis needs the package 'redis'; {how_to_install('redis')}")
    return url
