"""The secret under which request ids choose hold-back, rollout and exploration."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from pathlib import Path

from slipstream_core.errors import CommandError
from slipstream_core.file_thread import FileThread
from slipstream_core.regular_files import read_regular
from slipstream_core.settings import ASSIGNMENT_VARIABLE, assignment_secret

MIN_BYTES = 16
_MAX_BYTES = 4096
_ALONE = (
    "slipstream: warning: gateways that share Redis or a cluster need one --assignment-secret FILE (or "
    f"{ASSIGNMENT_VARIABLE}): with a random one each, a request that is tried again at another gateway may be assigned "
    "otherwise."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--assignment-secret",
        type=Path,
        metavar="FILE",
        help=f"a secret of {MIN_BYTES} bytes or more, the same for all gateways of a deployment, or its text in "
        f"{ASSIGNMENT_VARIABLE} (without either: a random one at each start). Hold-back, rollout and exploration go by "
        "the hash of a request's id with this secret",
    )


def settings_of(args: argparse.Namespace, *, shares: bool) -> bytes:
    """The secret; a random one where none is given, with a warning where this gateway `shares` what it measures or
    serves with others. Raises `CommandError` where the one that is given cannot be used."""
    if args.assignment_secret is not None:
        return _long_enough(_read(args.assignment_secret), f"--assignment-secret {args.assignment_secret}")
    if (given := assignment_secret()) is not None:
        return _long_enough(os.fsencode(given).rstrip(b"\r\n"), ASSIGNMENT_VARIABLE)
    if shares:
        print(_ALONE, file=sys.stderr, flush=True)
    return secrets.token_bytes(32)


def _read(path: Path) -> bytes:
    try:
        return FileThread().run(lambda: read_regular(path, max_bytes=_MAX_BYTES)).rstrip(b"\r\n")
    except OSError as exc:
        message = f"--assignment-secret {path}: cannot be read: {exc.strerror or exc}."
        raise CommandError(message, exit_code=2) from exc


def _long_enough(secret: bytes, where: str) -> bytes:
    if len(secret) < MIN_BYTES:
        message = f"{where}: a secret has at least {MIN_BYTES} bytes, this one has {len(secret)}."
        raise CommandError(message, exit_code=2)
    return secret
