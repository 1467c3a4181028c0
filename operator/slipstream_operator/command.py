"""`slipstream operator`: turns ModelPairs into Triton deployments, and promotes and rolls back speculation by class."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import logging
import signal

from slipstream_core.arguments import add_options, read_options
from slipstream_core.errors import CommandError, SlipstreamError
from slipstream_core.manifest.grants import read_grants
from slipstream_core.settings import LOG_LEVELS, NO_GRANTS, redis_url

from slipstream_operator.settings import LIVENESS_PORT, METRICS_PORT, PATIENCE_S, RESYNC_S, WORKERS, OperatorSettings
from slipstream_operator.types import DEFAULT_IMAGE, KubeObject

_PACKAGES = ("kopf", "kubernetes", "prometheus_client", "redis")
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, OperatorSettings)
    parser.add_argument(
        "-n",
        "--namespace",
        action="append",
        default=[],
        metavar="NS",
        help="namespace whose pairs are managed; may be repeated (default: the whole cluster)",
    )
    parser.add_argument(
        "--release",
        type=_label,
        metavar="NAME",
        help="name of this installation, a label of its objects; a namespace that another installation manages is left "
        "alone (NAMESPACE.slipstream, with the operator's own namespace)",
    )
    parser.add_argument(
        "--report-namespace",
        metavar="NS",
        help="namespace of the gateways' reports (the operator's own)",
    )
    parser.add_argument(
        "--grants",
        type=Path,
        metavar="FILE",
        help="which namespaces may use which API keys and model names, the same file as the gateways' (default: no "
        "namespace may use a key)",
    )
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="kubeconfig of the cluster (in a pod its service account, else $KUBECONFIG or ~/.kube/config)",
    )
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig (its current one)")
    parser.add_argument(
        "--redis",
        metavar="URL",
        help="Redis in which the gateways share outcomes, redis://host:port/db; put a URL with a password into "
        "SLIPSTREAM_REDIS_URL (without either there is no evidence, so nothing is promoted)",
    )
    parser.add_argument(
        "--triton-image",
        "--image",
        default=DEFAULT_IMAGE,
        metavar="IMAGE",
        help="image of Triton with Slipstream's engine, for pairs without an image (%(default)s)",
    )
    parser.add_argument(
        "--server-ingress",
        type=_ingress_rules,
        metavar="JSON",
        help="ingress rules of a NetworkPolicy for each pair's servers, as a list (default: no NetworkPolicy)",
    )
    parser.add_argument("--host", default="0.0.0.0", help="address of the two ports below (%(default)s)")  # nosec B104
    parser.add_argument(
        "--liveness-port", type=port, default=LIVENESS_PORT, help="port of /healthz (%(default)s)", metavar="N"
    )
    parser.add_argument(
        "--metrics-port", type=port, default=METRICS_PORT, help="port of /metrics and /ready (%(default)s)", metavar="N"
    )
    parser.add_argument(
        "--leader-election", action="store_true", help="only one of several operators works; the others stand by"
    )
    parser.add_argument("--lease-namespace", metavar="NS", help="namespace of the leader's Lease (its own)")
    parser.add_argument(
        "--resync",
        type=seconds,
        default=RESYNC_S,
        metavar="SECONDS",
        help="interval at which everything is listed and reconciled, beside the watch (%(default)g)",
    )
    parser.add_argument(
        "--workers", type=at_least_one, default=WORKERS, metavar="N", help="objects reconciled at once (%(default)s)"
    )
    parser.add_argument(
        "--patience",
        type=seconds,
        default=PATIENCE_S,
        metavar="SECONDS",
        help="how long the API server may refuse or fail before the process ends, to be restarted (%(default)g)",
    )
    parser.add_argument(
        "--log-level", choices=_LEVELS, default="info", help="lowest level of log records (%(default)s)"
    )


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
    # These packages are optional, and load only after the options were checked.
    from slipstream_operator.handlers import kopf_watch
    from slipstream_operator.main import operate
    from slipstream_operator.reconcile.pair import reconcile_pair
    from slipstream_operator.reconcile.policy import reconcile_policy

    kopf_watch.quiet()

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
        # The top of the process: Kubernetes restarts it, and the log must have the reason.
        logging.getLogger(__name__).exception("the operator cannot continue")
        raise CommandError(f"the operator cannot continue: {exc or type(exc).__name__}") from exc
    return 0


def _check_packages() -> None:
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandError(
            f"'slipstream operator' needs the package {missing[0]!r}: install 'slipstream-serving[operator]'."
        )


def settings_of(args: argparse.Namespace) -> OperatorSettings:
    """The settings of the options that `add_arguments` defines."""
    return OperatorSettings(
        release=args.release,
        namespaces=tuple(dict.fromkeys(args.namespace)),
        grants=read_grants(args.grants) if args.grants else NO_GRANTS,
        redis_url=args.redis or redis_url(),
    )
