"""`slipstream operator`: turns ModelPairs into Triton deployments, and promotes and rolls back speculation by class."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import logging
import os
import signal
import threading

from slipstream_core import logs
from slipstream_core.arguments import add_options, read_options
from slipstream_core.environment import redis_url
from slipstream_core.errors import CommandError, SlipstreamError
from slipstream_core.installation import how_to_install
from slipstream_core.manifest.grants import read_grants
from slipstream_core.settings import NO_GRANTS

from slipstream_operator.settings import OperatorSettings

_EXIT_S = 8.0  # after a failure; longer than the watch's own end
_END_S = 25.0  # after a signal; Kubernetes kills after 30 s
_PACKAGES = ("kopf", "kubernetes", "prometheus_client", "redis")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, OperatorSettings)
    parser.add_argument(
        "--log-level", choices=logs.LEVELS, default="info", help="least severe messages to log (default: %(default)s)"
    )
    parser.add_argument(
        "--log-format",
        choices=logs.FORMATS,
        default="text",
        help="form of log lines: text, or JSON for collectors (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    _check_packages()
    settings = settings_of(args)
    logs.configure(args.log_level, args.log_format)
    # These packages are optional, and load only after the options were checked.
    from slipstream_operator.handlers import kopf_watch
    from slipstream_operator.main import operate

    kopf_watch.quiet()

    exits: list[threading.Timer] = []

    async def until_signalled() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()

        def end() -> None:
            if not stop.is_set():
                exits.append(_exit_in_time(_END_S, f"the operator has not ended within {_END_S:g} s of the signal"))
            stop.set()

        def heed_signals() -> None:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, end)

        heed_signals()
        try:
            while await operate(settings, stop=stop, heed_signals=heed_signals):
                pass
        except Exception as exc:
            reason = f"the operator cannot continue: {exc or type(exc).__name__}"
            exits.append(_exit_in_time(_EXIT_S, reason))
            if isinstance(exc, SlipstreamError):
                raise
            # The top of the process: Kubernetes restarts it, and the log must have the reason.
            logging.getLogger(__name__).exception("the operator cannot continue")
            raise CommandError(reason) from exc

    try:
        asyncio.run(until_signalled())
    finally:
        for timer in exits:
            timer.cancel()
    return 0


def _exit_in_time(after_s: float, reason: str) -> threading.Timer:
    """Ends the process with `reason` if its tasks have not ended `after_s` from now: some of kopf's wait for
    credentials, and ignore that they are cancelled."""

    def end() -> None:
        logs.tell(f"slipstream: error: {reason}", logging.ERROR)
        os._exit(1)

    timer = threading.Timer(after_s, end)
    timer.daemon = True
    timer.start()
    return timer


def _check_packages() -> None:
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandError(f"'slipstream operator' needs the package {missing[0]!r}; {how_to_install('operator')}")


def settings_of(args: argparse.Namespace) -> OperatorSettings:
    """The settings of the parsed options of `add_arguments`."""
    return read_options(
        args,
        OperatorSettings,
        namespaces=tuple(dict.fromkeys(args.namespace or ())),
        grants=read_grants(args.grants) if args.grants else NO_GRANTS,
        redis_url=args.redis or redis_url(),
    )
