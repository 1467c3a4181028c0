"""Which servers a manifest may name, against requests forged through it (SSRF, OWASP's cheat sheet of that name).

Two looks: at the address as it is written, before there is a client for it; and at what its name resolves to, for each
connection, because a name may resolve to something else later (DNS rebinding).
"""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from slipstream_gateway.errors import CommandError

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
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
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_ODD_NUMBER = re.compile(r"0[xX][0-9a-fA-F]*")  # a last label that the C library reads as part of an IPv4 address
_SUFFIX = re.compile(r"\.?[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")


class EndpointRules:
    """`allowed` are networks (CIDR) and domain suffixes; empty: every server but those that no model server has.
    `shared`: others write manifests, so that the gateway's own machine is no server either, unless it is allowed."""

    def __init__(self, allowed: Sequence[str] = (), *, shared: bool = False) -> None:
        """Raises `CommandError` for what is neither a network nor a domain."""
        self._networks: list[_Network] = []
        self._suffixes: list[str] = []
        self._shared = shared
        for entry in allowed:
            self._add(entry)

    def refuse(self, endpoint: str) -> str | None:
        """Why there is no connecting to `endpoint` (a URL), or None."""
        host = (urlsplit(endpoint).hostname or "").removesuffix(".")
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return self._refuse_name(host)
        return self.refuse_address(address) or self._refuse_unlisted(address)

    def refuse_address(self, given: _Address) -> str | None:
        """Why no connection may go to the address, whatever name it was found by."""
        address = _embedded(given)
        if any(address in network for network in _METADATA if network.version == address.version):
            return f"{given} is link-local or a cloud's metadata service"
        if address.is_unspecified or address.is_multicast:
            return f"{given} is no server's address"
        if self._shared and address.is_loopback and not self._listed(address):
            return f"{given} is the gateway's own machine"
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
        if host in _METADATA_NAMES or _ODD_NUMBER.fullmatch(host.rpartition(".")[2]):
            return f"'{host}' is a cloud's metadata service or an address in disguise"
        if self._shared and (host == "localhost" or host.endswith(".localhost")) and not self._names(host):
            return f"'{host}' is the gateway's own machine"
        if (self._networks or self._suffixes) and not self._names(host):
            return f"'{host}' is in no domain of --allow-endpoint"
        return None

    def _names(self, host: str) -> bool:
        """A suffix with a dot before it stands for what is below it, one without for the very name too."""
        return any(
            host.endswith(suffix if suffix.startswith(".") else f".{suffix}") or host == suffix
            for suffix in self._suffixes
        )

    def _refuse_unlisted(self, address: _Address) -> str | None:
        if (self._networks or self._suffixes) and not self._listed(address):
            return f"{address} is in no network of --allow-endpoint"
        return None

    def _listed(self, given: _Address) -> bool:
        address = _embedded(given)
        return any(address in network for network in self._networks if network.version == address.version)


def may_name_variable(name: str, allowed: Sequence[str]) -> bool:
    """Whether a manifest may name the environment variable `name` for an API key. Our own hold other secrets."""
    return not name.startswith("SLIPSTREAM_") and any(fnmatch.fnmatchcase(name, pattern) for pattern in allowed)


def _embedded(address: _Address) -> _Address:
    """The IPv4 address that an IPv6 one stands for, where it does."""
    if not isinstance(address, ipaddress.IPv6Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address
