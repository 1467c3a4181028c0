"""Who may use the gateway."""

from __future__ import annotations

import argparse
from pathlib import Path

from slipstream_core.errors import CommandError
from slipstream_core.settings import AccessSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("access")
    group.add_argument(
        "--keys",
        type=Path,
        metavar="FILE",
        help="API keys, limits and token issuers, as 'slipstream keys' writes them; followed when it changes "
        "(without it everybody who reaches the gateway may use it)",
    )
    group.add_argument(
        "--pepper", type=Path, metavar="FILE", help="what the keys are hashed under (FILE.pepper beside the keys)"
    )


def settings_of(args: argparse.Namespace) -> AccessSettings:
    """Raises `CommandError` where the file of keys is bad: here, and not in a worker."""
    if args.keys is None:
        if args.pepper is not None:
            raise CommandError("--pepper is for the keys of --keys FILE.", exit_code=2)
        return AccessSettings()
    from slipstream_gateway.access import load_keyring

    load_keyring(args.keys, args.pepper)
    return AccessSettings(keys=args.keys.absolute(), pepper=args.pepper.absolute() if args.pepper else None)
