"""The options of `slipstream route`."""

from __future__ import annotations

import argparse
from pathlib import Path

from slipstream_core.arguments import share
from slipstream_core.manifest import EMBEDDED_MANIFEST
from slipstream_core.types import Mode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-f",
        "--manifest",
        type=Path,
        default=EMBEDDED_MANIFEST,
        metavar="FILE",
        help="ModelPairs and policies (default: the embedded pair)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, in the form of POST /v1/route")
    parser.add_argument("--mode", choices=[str(mode) for mode in Mode], help="value of the header x-slipstream-mode")
    parser.add_argument(
        "--pressure",
        type=share,
        default=0.0,
        metavar="P",
        help="assumed pressure: the share of taken places, 0 to 1 (%(default)s)",
    )
    parser.add_argument(
        "file",
        nargs="?",
        default="-",
        metavar="FILE",
        help="file with an OpenAI request body in JSON; - or none: stdin",
    )
