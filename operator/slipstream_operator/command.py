"""`slipstream operator`: turns ModelPairs into Triton deployments, and promotes and rolls back speculation by class."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import logging
import re
import signal
from pathlib import Path

import msgspec
from slipstream_core.arguments import at_least_one, port, seconds
from slipstream_core.errors import CommandError, SlipstreamError
from slipstream_core.manifest.grants import read_grants
from slipstream_core.settings import NO_GRANTS, redis_url

from slipstream_operator.plan import DEFAULT_IMAGE, KubeObject
from slipstream_operator.settings import LIVENESS_PORT, METRICS_PORT, PATIENCE_S, RESYNC_S, WORKERS, OperatorSettings

_LEVELS = ("critical", "error", "warning", "info", "debug")
_PACKAGES = ("kopf", "kubernetes", "prometheus_client", "redis")
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n",
        "--namespace",
        action="append",
        default=[],
        metavar="NS",
        help="namespace whose pairs are served; may be repeated (without it, the whole cluster)",
    )
    parser.add_argument(
        "--release",
        type=_label,
        metavar="NAME",
        help="this installation, by which its objects are labelled; where another one manages a namespace already, "
        "nothing is changed there (NAMESPACE.slipstream, by the operator's own namespace)",
    )
    parser.add_argument(
        "--report-namespace",
        metavar="NS",
        help="where the gateways' reports lie (the operator's own namespace)",
    )
    parser.add_argument(
        "--grants",
        type=Path,
        metavar="FILE",
        help="which namespaces may use which API keys and model names: the same file as the gateways' (without "
        "it, none may use any key)",
    )
    parser.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="cluster and login (in a pod its own account, else the usual)"
    )
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig (its current one)")
    parser.add_argument(
        "--redis",
        metavar="URL",
        help="where the gateways share outcomes, redis://host:port/db; a URL with a password is better put into "
        "SLIPSTREAM_REDIS_URL (without either, nothing is promoted: there is no evidence)",
    )
    parser.add_argument(
        "--triton-image",
        "--image",
        default=DEFAULT_IMAGE,
        metavar="IMAGE",
        help="Triton with Slipstream's engine, for pairs that name none (%(default)s)",
    )
    parser.add_argument(
        "--server-ingress",
        type=_ingress_rules,
        metavar="JSON",
        help="ingress rules of a NetworkPolicy for each pair's servers, as a list (without it, there is no policy)",
    )
    parser.add_argument("--host", default="0.0.0.0", help="address of the two ports below (%(default)s)")  # nosec B104
    parser.add_argument(
        "--liveness-port", type=port, default=LIVENESS_PORT, help="port of /healthz (%(default)s)", metavar="N"
    )
    parser.add_argument(
        "--metrics-port", type=port, default=METRICS_PORT, help="port of /metrics and /ready (%(default)s)", metavar="N"
    )
    parser.add_argument(
        "--leader-election", action="store_true", help="of several operators, one works; the others stand by"
    )
    parser.add_argument("--lease-namespace", metavar="NS", help="where the leader's Lease lies (its own namespace)")
    parser.add_argument(
        "--resync",
        type=seconds,
        default=RESYNC_S,
        metavar="SECONDS",
        help="everything is listed and looked at this often, beside the watch (%(default)g)",
    )
    parser.add_argument(
        "--workers", type=at_least_one, default=WORKERS, metavar="N", help="objects worked on at once (%(default)s)"
    )
    parser.add_argument(
        "--patience",
        type=seconds,
        default=PATIENCE_S,
        metavar="SECONDS",
        help="how long the API server may refuse, or fail, before the process ends to be started anew (%(default)g)",
    )
    parser.add_argument("--log-level", choices=_LEVELS, default="info", help="what is logged (%(default)s)")


def _label(text: str) -> str:
    """`text`, which will be the value of a label."""
    if re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", text) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r}: letters, digits, dots and dashes, with a letter or digit at both ends"
        )
    return text


def _ingress_rules(text: str) -> tuple[KubeObject, ...]:
    try:
        return msgspec.json.decode(text, type=tuple[KubeObject, ...])
    except msgspec.MsgspecError as exc:
        raise argparse.ArgumentTypeError(f"expected a list of objects in JSON: {exc}") from exc


def run(args: argparse.Namespace) -> int:
    _check_packages()
    settings = settings_of(args)
    logging.basicConfig(level=args.log_level.upper(), format=_FORMAT)
    # These load only where they are there, and after the options are known to be good.
    from slipstream_operator import watches
    from slipstream_operator.main import operate
    from slipstream_operator.reconcile.pair import reconcile_pair
    from slipstream_operator.reconcile.policy import reconcile_policy

    watches.quiet()

    async def until_signalled() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await operate(settings, decide_pair=reconcile_pair, decide_policy=reconcile_policy, stop=stop)

    try:
        asyncio.run(until_signalled())
    except SlipstreamError:
        raise
    except Exception as exc:
        # The top of the process: Kubernetes starts it anew, and the log must say why it ended.
        logging.getLogger(__name__).exception("the operator cannot go on")
        raise CommandError(f"the operator cannot go on: {exc or type(exc).__name__}") from exc
    return 0


def _check_packages() -> None:
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandError(
            f"'slipstream operator' needs the package {missing[0]!r}: install 'slipstream-serving[operator]'."
        )


def settings_of(args: argparse.Namespace) -> OperatorSettings:
    """What the options, as `add_arguments` defines them, say."""
    return OperatorSettings(
        release=args.release,
        namespaces=tuple(dict.fromkeys(args.namespace)),
        grants=read_grants(args.grants) if args.grants else NO_GRANTS,
        report_namespace=args.report_namespace,
        kubeconfig=args.kubeconfig,
        context=args.context,
        redis_url=args.redis or redis_url(),
        image=args.triton_image,
        server_ingress=args.server_ingress,
        host=args.host,
        liveness_port=args.liveness_port,
        metrics_port=args.metrics_port,
        leader_election=args.leader_election,
        lease_namespace=args.lease_namespace,
        resync_s=args.resync,
        workers=args.workers,
        patience_s=args.patience,
    )
