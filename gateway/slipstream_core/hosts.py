"""Classification of hosts: names, addresses, loopback."""

from __future__ import annotations

import ipaddress
import re
import socket
from functools import lru_cache
from urllib.parse import urlsplit

_AUTHORITY = re.compile(
    r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]{0,5})?"
)
"""`host [ ":" port ]` of RFC 3986, 3.2.2. The host may be empty; addresses of later versions are not known."""


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


@lru_cache(maxsize=64)  # clients repeat their `Host` with each request
def is_authority(text: str) -> bool:
    """Whether `text` is a host with or without a port (RFC 9110, 7.2): no user before it, no path after it."""
    found = _AUTHORITY.fullmatch(text)
    return found is not None and (found["address"] is None or is_address(found["address"]))


@lru_cache(maxsize=64)
def without_port(authority: str) -> str:
    """The host in `host:port` or `[address]:port`, as a `Host` header has it, in lower case; empty if `authority` is
    neither."""
    if not is_authority(authority):
        return ""
    host = authority[1:].partition("]")[0] if authority.startswith("[") else authority.partition(":")[0]
    return host.lower()


def is_http_url(text: str) -> bool:
    """Whether `text` is the URL of an HTTP server, with a host and, where it has a port, a valid one."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def _resolved(host: str) -> list[str]:
    """An empty name stands for every address."""
    return [str(found[4][0]) for found in socket.getaddrinfo(host, None)] if host else []
