"""Whether engines are checked before they speculate, and how often again."""

from __future__ import annotations

import argparse

from slipstream_core.arguments import seconds
from slipstream_core.settings import ConformanceSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    defaults = ConformanceSettings()
    group = parser.add_argument_group("conformance")
    group.add_argument(
        "--conformance",
        choices=("on", "off"),
        default="on",
        help="check that speculation leaves answers what they are, and withhold it from servers where it does not; "
        "off: trust every engine (%(default)s)",
    )
    group.add_argument(
        "--conformance-every",
        type=seconds,
        default=defaults.every_s,
        metavar="SECONDS",
        help="time between two checks of a server, give or take a quarter (%(default)g)",
    )


def settings_of(args: argparse.Namespace) -> ConformanceSettings:
    return ConformanceSettings(enabled=args.conformance == "on", every_s=args.conformance_every)
