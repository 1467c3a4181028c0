"""Whether the ports that `slipstream up` is about to use are free: said before anything starts."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence

import msgspec

from slipstream_gateway.errors import CommandError


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """A port to listen on, and the command-line option that chooses it."""

    number: int
    host: str
    option: str


def check_ports(ports: Sequence[Port]) -> None:
    """Make sure that each port is free and asked for once.

    Raises:
        CommandError: names the first port that is not, and its option.
    """
    options: dict[int, str] = {}
    for port in ports:
        if port.number in options:
            raise CommandError(f"port {port.number} is asked for by {options[port.number]} and {port.option}")
        options[port.number] = port.option
        _check_free(port)


def _check_free(port: Port) -> None:
    try:
        [(family, _, _, _, address), *_] = socket.getaddrinfo(
            port.host, port.number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # As servers do: a port whose last connections are only fading away counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as exc:
        if exc.errno == errno.EADDRINUSE:
            message = f"port {port.number} is in use; choose another with {port.option}"
        else:
            message = f"cannot listen on {port.host} port {port.number} ({port.option}): {exc.strerror or exc}"
        raise CommandError(message) from exc
