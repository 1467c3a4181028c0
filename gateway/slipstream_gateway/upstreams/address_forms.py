"""IPv4 addresses in other notations: numbers that the C library parses as addresses, and IPv6 addresses with an
embedded one."""

from __future__ import annotations

import ipaddress
import socket

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # RFC 6052, section 2.1
_NAT64_LOCAL = ipaddress.ip_network("64:ff9b:1::/48")  # RFC 8215
_TRANSLATED = ipaddress.ip_network("::ffff:0:0:0/96")  # RFC 2765, section 2.1
_COMPATIBLE = ipaddress.ip_network("::/96")  # RFC 4291, section 2.5.5.1
_LOOPBACK = ipaddress.IPv6Address("::1")
_ISATAP = (b"\x00\x00\x5e\xfe", b"\x02\x00\x5e\xfe")  # RFC 5214, section 6.1


def numeric_ipv4(host: str) -> ipaddress.IPv4Address | None:
    """The address that `inet_aton` and `getaddrinfo` parse from `host`: one to four numbers, decimal, octal or
    hexadecimal (`127.1`, `2852039166`, `0xa9fea9fe`). None if `host` is not such a number."""
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except OSError:
        return None


def meanings(address: Address) -> tuple[Address, ...]:
    """The possible destinations of packets to `address`: the embedded IPv4 addresses, or else `address` itself. An
    ISATAP address is both, because any network may assign such addresses to its hosts without a tunnel."""
    if isinstance(address, ipaddress.IPv4Address):
        return (address,)
    found = _held(address) or (address,)
    if address.packed[8:12] in _ISATAP:
        return (address, *found, ipaddress.IPv4Address(address.packed[12:]))
    return found


def _held(address: ipaddress.IPv6Address) -> tuple[Address, ...]:
    packed = address.packed
    last = ipaddress.IPv4Address(packed[12:])
    if address in _NAT64_LOCAL:
        return _by_prefix_length(packed)
    if address in _NAT64 or address in _TRANSLATED:
        return (last,)
    if address in _COMPATIBLE and not address.is_unspecified and int(address) != int(_LOOPBACK):
        return (last,)
    if address.teredo is not None:  # RFC 4380: the server's and the client's address
        return address.teredo
    held = address.ipv4_mapped or address.sixtofour
    return () if held is None else (held,)


def _by_prefix_length(packed: bytes) -> tuple[Address, ...]:
    """The addresses of RFC 6052, section 2.2, for each prefix length that a network may use within 64:ff9b:1::/48:
    after 48, 56 or 64 bits, without octet 8 and followed by zeros; or after 96."""
    without_u = packed[:8] + packed[9:]
    places = [without_u[start : start + 4] for start in (6, 7, 8) if not any(without_u[start + 4 :])]
    return tuple(ipaddress.IPv4Address(place) for place in (*places, packed[12:]) if any(place))
