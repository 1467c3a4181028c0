"""Ports of `slipstream up`: checks that the given ones are free, and chooses free ones otherwise."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice

import msgspec
from slipstream_core.errors import CommandError
from slipstream_core.listeners import bound_socket

# Below the range that the kernel uses for outgoing connections, where a port would not stay free.
_CHOSEN = range(12_000, 20_000)


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """A port to listen on, and the command-line option that chooses it."""

    number: int
    host: str
    option: str


def check_ports(ports: Sequence[Port]) -> None:
    """Checks that each port is free and given once.

    Raises:
        CommandError: with the first port that is not, and its option.
    """
    options: dict[int, str] = {}
    for port in ports:
        if port.number in options:
            raise CommandError(f"port {port.number} is set by both {options[port.number]} and {port.option}")
        options[port.number] = port.option
        _check_free(port)


def free_ports(count: int, *, host: str) -> list[int]:
    """Different free ports of `host`, in random order because another command may search at the same time.

    Raises:
        CommandError: there are not enough free ports.
    """
    candidates = random.SystemRandom().sample(_CHOSEN, len(_CHOSEN))
    ports = list(islice((port for port in candidates if _is_free(host, port)), count))
    if len(ports) < count:
        raise CommandError(f"no port from {_CHOSEN.start} to {_CHOSEN.stop - 1} is free on {host}")
    return ports


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.bind((host, port))
        return True
    return False


def _check_free(port: Port) -> None:
    try:
        with bound_socket(port.host, port.number) as probe:
            probe.listen(1)
    except OSError as exc:
        if exc.errno == errno.EADDRINUSE:
            message = f"port {port.number} is in use; choose another with {port.option}"
        else:
            message = f"cannot listen on {port.host} port {port.number} ({port.option}): {exc.strerror or exc}"
        raise CommandError(message) from exc
