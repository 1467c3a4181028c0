"""Classification of hosts: names, addresses, loopback."""

from __future__ import annotations

import ipaddress
import socket


def is_loopback(host: str) -> bool:
    """Whether a listener on `host` is reachable from this machine only; a name counts by all of its addresses."""
    try:
        addresses = [host] if is_address(host) else _resolved(host)
    except OSError:
        return False  # binding to it will report the problem
    return bool(addresses) and all(is_loopback_address(address) for address in addresses)


def is_loopback_address(text: str) -> bool:
    """Whether `text` is a loopback address; nothing is resolved."""
    if not is_address(text):
        return False
    address = ipaddress.ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def without_port(authority: str) -> str:
    """The host in `host:port` or `[address]:port`, as a `Host` header has it, in lower case."""
    host = authority[1:].partition("]")[0] if authority.startswith("[") else authority.partition(":")[0]
    return host.lower()


def _resolved(host: str) -> list[str]:
    """An empty name stands for every address."""
    return [str(found[4][0]) for found in socket.getaddrinfo(host, None)] if host else []
