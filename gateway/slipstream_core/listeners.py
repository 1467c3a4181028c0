"""Listening sockets of both address families.

The wildcard address `::` means every address of the machine, IPv4 and IPv6. asyncio, uvloop and aiohttp would make it
IPv6 only, and Python has no address that a machine without IPv6 accepts as well.
"""

from __future__ import annotations

import functools
import logging
import socket
from collections.abc import Sequence

from slipstream_core.errors import CommandError

EVERY_ADDRESS = "::"
EVERY_IPV4_ADDRESS = "0.0.0.0"  # nosec B104 # the meaning of `::` where there is no IPv6

_LAST_PORT = 65535

logger = logging.getLogger(__name__)


def admin_ports(first: int | None, workers: int, *, public: int) -> Sequence[int]:
    """The ports of the admin paths of `workers` gateways behind the port `public`: `first` and the ones after it, 0 for
    free ones. Empty if the admin paths are on the public port.

    Raises:
        CommandError: no such ports exist. One of them must not be `public`, not even on another address: the port alone
            decides which paths a request can reach.
    """
    if first is None:
        if workers == 1:
            return ()
        raise CommandError(
            f"--workers {workers}: each worker is a gateway with its own metrics, console and kill switch. Give "
            "--admin-port PORT; the admin paths of the workers are on this port and the ones after it.",
            exit_code=2,
        )
    ports = range(first, first + workers) if first else [0] * workers
    if public in ports and public:
        among = "" if workers == 1 else f", as one of {workers} admin ports from {first} on"
        raise CommandError(f"--admin-port and --port are both {public}{among}.", exit_code=2)
    if ports[-1] > _LAST_PORT:
        raise CommandError(f"--admin-port {first}: the last of {workers} ports would be {ports[-1]}.", exit_code=2)
    return ports


def available_host(host: str) -> str:
    """`host`, or 0.0.0.0 in place of `::` on a machine without IPv6, which is logged once."""
    return host if host != EVERY_ADDRESS or _has_ipv6() else EVERY_IPV4_ADDRESS


def bound_socket(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    """A socket that is bound to an address, or to the first address of a name, and does not listen yet. `::` accepts
    IPv4 and IPv6. `is_shared`: other processes bind the same port.

    Raises:
        OSError: the address is not available.
        OverflowError: the port is out of range.
    """
    family, address = _address(available_host(host), port)
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:  # not left to the sysctl net.ipv6.bindv6only
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != EVERY_ADDRESS)
        bound.bind(address)
    except BaseException:
        bound.close()
        raise
    return bound


def authority(host: str, port: int) -> str:
    """`host:port` as URLs and messages have it: an IPv6 address is in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_authority(text: str) -> tuple[str, int]:
    """The host, without brackets, and the port of `host:port` or `[address]:port`."""
    host, _, port = text.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _address(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    if not host:
        return socket.AF_INET, (host, port)
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # A name has its IPv4 address first, because localhost is 127.0.0.1 to all clients and ::1 to some.
    family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    return family, (str(address[0]), port)


@functools.cache
def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as trial:
            trial.bind((EVERY_ADDRESS, 0))
    except OSError as exc:
        logger.warning("This machine has no IPv6 (%s): %s is used in place of ::.", exc.strerror, EVERY_IPV4_ADDRESS)
        return False
    return True
