"""Which classifier judges requests."""

from __future__ import annotations

import argparse
from pathlib import Path

from slipstream_gateway.decide.classify import load_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--classifier",
        type=Path,
        metavar="FILE",
        help="a model that 'slipstream train' wrote (without it, the one that comes with the package)",
    )


def settings_of(args: argparse.Namespace) -> Path | None:
    """The model's file. Raises `CommandError` where it is none."""
    if not args.classifier:
        return None
    file: Path = args.classifier.absolute()
    load_model(file)
    return file
