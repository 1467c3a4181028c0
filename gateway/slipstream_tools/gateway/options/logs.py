"""What is logged."""

from __future__ import annotations

import argparse

_LEVELS = ("critical", "error", "warning", "info", "debug")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--log-level", choices=_LEVELS, default="warning", help="what is logged (%(default)s)")
