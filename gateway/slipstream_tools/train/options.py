"""The options of `slipstream train`."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("requests", type=Path, metavar="FILE", help="labelled requests, JSON Lines, optionally gzipped")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("classifier.npz"),
        metavar="FILE",
        help="output file of the model (default: %(default)s)",
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="also write the report, as .md or .json")
    parser.add_argument(
        "--exclude-source",
        action="append",
        default=[],
        metavar="SOURCE",
        help="source to leave out of the training and to measure on; may be repeated",
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed; the same seed and file give the same model")
