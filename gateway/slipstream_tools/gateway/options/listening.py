"""Where the gateway listens, and for whom."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from slipstream_core.arguments import at_least_one, port_or_any
from slipstream_core.errors import CommandError
from slipstream_core.hosts import is_loopback


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument(
        "--port", type=port_or_any, default=8080, help="port to listen on, 0 for a free one (%(default)s)"
    )
    parser.add_argument("--workers", type=at_least_one, default=1, metavar="N", help="processes (%(default)s)")
    parser.add_argument(
        "--allow-anonymous",
        action="store_true",
        help="listen on an address that other machines reach although there are no keys",
    )


def check_exposure(listeners: Sequence[tuple[str, str]], *, allowed: bool) -> None:
    """Raises `CommandError` where other machines reach one of `listeners` (option, host), unless that is `allowed`:
    there are keys, or whoever starts the gateway has said that everybody may come."""
    for option, host in listeners:
        if not allowed and not is_loopback(host):
            raise CommandError(
                f"{option} {host}: other machines can reach it, and there are no keys; give --keys FILE, or "
                "--allow-anonymous to let everybody in.",
                exit_code=2,
            )
