"""The servers that a manifest may name: protection against server-side request forgery (SSRF, OWASP's cheat sheet of
that name).

There are two checks: of the address as written, before a client for it exists; and of the addresses that its name
resolves to, for each connection, because a name may resolve to something else later (DNS rebinding).
"""

from __future__ import annotations

import fnmatch
import ipaddress
import re
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from slipstream_core.errors import CommandError

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


_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_METADATA = tuple(
    ipaddress.ip_network(text)
    for text in (
        "169.254.0.0/16",  # link-local: AWS, Google, Azure, OpenStack, DigitalOcean, Oracle
        "fe80::/10",
        "fd00:ec2::/32",  # AWS, over IPv6
        "fd20:ce::254/128",  # Google, over IPv6
        "100.100.100.200/32",  # Alibaba
        "168.63.129.16/32",  # Azure's wire server
        "192.0.0.192/32",  # Oracle, the older one
    )
)
_METADATA_NAMES = ("metadata", "metadata.google.internal", "instance-data", "instance-data.ec2.internal")
_LABEL = "[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")  # RFC 1123, and the underscores of some clusters
_NUMBER = re.compile(
    r"[0-9]+|0x[0-9a-f]*"
)  # no domain ends like this; a parser may take it for a part of an IPv4 address
_SUFFIX = re.compile(r"\.?[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")


class EndpointRules:
    """`allowed` are networks (CIDR) and domain suffixes; if it is empty, every server is allowed except addresses that
    no model server has. `shared`: other people write manifests, so this process's own machine is refused too, unless it
    is allowed."""

    def __init__(self, allowed: Sequence[str] = (), *, shared: bool = False) -> None:
        """Raises `CommandError` for an entry that is neither a network nor a domain."""
        self._networks: list[_Network] = []
        self._suffixes: list[str] = []
        self._shared = shared
        for entry in allowed:
            self._add(entry)

    def refuse(self, endpoint: str) -> str | None:
        """The reason for refusing connections to `endpoint` (a URL), or None."""
        try:
            host = (urlsplit(endpoint).hostname or "").removesuffix(".")
        except ValueError as exc:
            return f"'{endpoint}' is not a URL: {exc}"
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return self._refuse_name(host)
        return self.refuse_address(address) or self._refuse_unlisted(address)

    def refuse_address(self, given: Address) -> str | None:
        """The reason for refusing connections to the address, whatever name resolved to it."""
        for address in meanings(given):
            shown = str(given) if address == given else f"{given} ({address})"
            if any(address in network for network in _METADATA if network.version == address.version):
                return f"{shown} is link-local or a cloud's metadata service"
            if address.is_unspecified or address.is_multicast:
                return f"{shown} is not a server's address"
            if self._shared and address.is_loopback and not self._listed(address):
                return f"{shown} is this machine's loopback"
        return None

    def _add(self, entry: str) -> None:
        try:
            self._networks.append(ipaddress.ip_network(entry, strict=False))
        except ValueError:
            suffix = entry.lower().removeprefix("*")
            if "/" in entry or not _SUFFIX.fullmatch(suffix):
                message = f"--allow-endpoint {entry}: expected a network (10.0.0.0/8) or a domain (.models.svc)."
                raise CommandError(message, exit_code=2) from None
            self._suffixes.append(suffix)

    def _refuse_name(self, host: str) -> str | None:
        if _NAME.fullmatch(host) is None:
            return f"'{host}' is not a host name"
        if (address := numeric_ipv4(host)) is not None:  # ambiguous: 010.0.0.1 is 8.0.0.1 or 10.0.0.1
            return self.refuse_address(address) or f"'{host}' is another notation of {address}"
        if _NUMBER.fullmatch(host.rpartition(".")[2]):
            return f"'{host}' is neither a host name nor an IPv4 address"
        if host in _METADATA_NAMES:
            return f"'{host}' is a cloud's metadata service"
        if self._shared and (host == "localhost" or host.endswith(".localhost")) and not self._names(host):
            return f"'{host}' is this machine's loopback"
        if (self._networks or self._suffixes) and not self._names(host):
            return f"'{host}' is in no domain of --allow-endpoint"
        return None

    def _names(self, host: str) -> bool:
        """A suffix with a leading dot matches subdomains only; one without it also matches the domain itself."""
        return any(
            host.endswith(suffix if suffix.startswith(".") else f".{suffix}") or host == suffix
            for suffix in self._suffixes
        )

    def _refuse_unlisted(self, address: Address) -> str | None:
        if (self._networks or self._suffixes) and not self._listed(address):
            return f"{address} is in no network of --allow-endpoint"
        return None

    def _listed(self, given: Address) -> bool:
        """Whether the networks contain the address, or all addresses that it may stand for."""
        return self._holds(given) or all(self._holds(address) for address in meanings(given))

    def _holds(self, address: Address) -> bool:
        return any(address in network for network in self._networks if network.version == address.version)


def may_name_variable(name: str, allowed: Sequence[str]) -> bool:
    """Whether a manifest may name the environment variable `name` for an API key. Slipstream's own variables hold other
    secrets."""
    return not name.startswith("SLIPSTREAM_") and any(fnmatch.fnmatchcase(name, pattern) for pattern in allowed)
