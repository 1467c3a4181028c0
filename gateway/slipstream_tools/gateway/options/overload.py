"""When a worker takes on less, and which servers it leaves out."""

from __future__ import annotations

import argparse

from slipstream_core.arguments import above_one, at_least_one, share
from slipstream_core.settings import HealthSettings, OverloadSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    overload, health = OverloadSettings(), HealthSettings()
    group = parser.add_argument_group("overload and health")
    group.add_argument(
        "--adaptive-limit",
        choices=("on", "off"),
        default="on" if overload.adaptive else "off",
        help="let fewer requests of a pair run at once while its first tokens take long (%(default)s)",
    )
    for name, kind, default, text in (
        ("--min-limit", at_least_one, overload.min_limit, "requests of a pair that may run at once at the least"),
        ("--retry-share", share, overload.retry_share, "share of the requests that may be tried again"),
        ("--max-error-share", share, health.max_error_share, "share of failed attempts that takes a server out"),
        ("--slow-factor", above_one, health.slow_factor, "times the others' first token that takes a server out"),
    ):
        group.add_argument(name, type=kind, default=default, metavar="N", help=f"{text} (%(default)s)")


def settings_of(args: argparse.Namespace) -> OverloadSettings:
    return OverloadSettings(
        adaptive=args.adaptive_limit == "on", min_limit=args.min_limit, retry_share=args.retry_share
    )


def health_of(args: argparse.Namespace) -> HealthSettings:
    return HealthSettings(max_error_share=args.max_error_share, slow_factor=args.slow_factor)
