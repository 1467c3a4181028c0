"""The options of `slipstream replay`."""

from __future__ import annotations

import argparse
from pathlib import Path

from slipstream_core.arguments import not_negative
from slipstream_core.manifest import EMBEDDED_MANIFEST


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", type=Path, metavar="RESULTS", help="results.jsonl of a slipstream bench")
    parser.add_argument(
        "--policy",
        type=Path,
        action="append",
        required=True,
        metavar="FILE",
        help="a SpeculationPolicy, alone or with its ModelPair; may be repeated",
    )
    parser.add_argument(
        "-f",
        "--manifest",
        type=Path,
        default=EMBEDDED_MANIFEST,
        metavar="FILE",
        help="manifest with the ModelPair of policies that come without one (the embedded pair)",
    )
    parser.add_argument("--model", metavar="NAME", help="model to replay, where a file has several")
    parser.add_argument("--draft", metavar="NAME", help="draft whose answers are used, where several were compared")
    parser.add_argument(
        "--classifier",
        type=Path,
        metavar="FILE",
        help="classifier written by 'slipstream train' (the one in the package)",
    )
    parser.add_argument(
        "--seed", type=not_negative, default=0, metavar="N", help="random seed of hold-back and exploration (0)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
