"""Where the gateway keeps what an admin told it."""

from __future__ import annotations

import argparse
from pathlib import Path

from slipstream_core.errors import CommandError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the console's kill switches")
    group.add_argument(
        "--state-folder",
        type=Path,
        metavar="FOLDER",
        help="where the file of kill switches is kept (without it: beside the manifest)",
    )


def settings_of(args: argparse.Namespace) -> Path | None:
    folder: Path | None = args.state_folder
    if folder is None:
        return None
    if not folder.is_dir():
        raise CommandError(f"--state-folder {folder}: there is no such folder.", exit_code=2)
    return folder.absolute()
