"""Validation of upstream addresses, strict enough that no client library refuses an accepted one."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from urllib.parse import SplitResult, urlsplit

from slipstream_core.manifest.engines import WireProtocol

_SCHEMES = {WireProtocol.OPENAI: ("http", "https"), WireProtocol.TRITON: ("grpc", "grpcs")}
_MAX_HOST_CHARS = 253
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_PATH = re.compile(r"(/([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*)*")  # RFC 3986, section 3.3


def address_form(protocol: WireProtocol) -> str:
    """The required form of an address of `protocol`, for messages."""
    return " or ".join(f"{scheme}://host:port" for scheme in _SCHEMES[protocol])


def fits(addresses: Iterable[str], protocol: WireProtocol) -> tuple[str, ...]:
    """The members of `addresses` whose scheme belongs to `protocol`."""
    schemes = tuple(f"{scheme}://" for scheme in _SCHEMES[protocol])
    return tuple(address for address in addresses if address.startswith(schemes))


def check_address(address: str, protocol: WireProtocol) -> str | None:
    """The requirement that `address` fails to meet, or None if it is valid."""
    form = address_form(protocol)
    if not address.startswith(tuple(f"{scheme}://" for scheme in _SCHEMES[protocol])):
        return f"must be {form}"
    if not (address.isascii() and address.isprintable() and " " not in address):
        return f"must be {form} in printable ASCII without spaces"
    if address.endswith(("?", "#")):
        return f"must be {form} without a query or fragment"
    try:
        url = urlsplit(address)
        port = url.port
    except ValueError as error:
        return f"must be {form} ({error})"
    return _check_parts(url, port, protocol, form)


def _check_parts(url: SplitResult, port: int | None, protocol: WireProtocol, form: str) -> str | None:
    if url.username is not None or url.password is not None:
        return "must not hold credentials; use apiKeyEnv"
    if url.query or url.fragment:
        return f"must be {form} without a query or fragment"
    if not _is_host(url.netloc, url.hostname or ""):
        return f"must be {form} with a host name or an IP address"
    if port == 0 or url.netloc.endswith(":"):
        return f"must be {form} with a port from 1 to 65535"
    if protocol is WireProtocol.TRITON and (port is None or url.path):
        return f"must be {form} with a port and without a path"
    if _PATH.fullmatch(url.path) is None:
        return f"must be {form} with a path of URL characters"
    return None


def _is_host(netloc: str, host: str) -> bool:
    if netloc.startswith("["):
        return netloc.partition("]")[2][:1] in ("", ":") and _is_ip(host, ipaddress.IPv6Address)
    labels = host.removesuffix(".").split(".")
    if len(host) > _MAX_HOST_CHARS or not all(_LABEL.fullmatch(label) for label in labels):
        return False
    return _is_ip(host, ipaddress.IPv4Address) if labels[-1].isdigit() else True


def _is_ip(text: str, kind: type[ipaddress.IPv4Address] | type[ipaddress.IPv6Address]) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return "%" not in text  # a zone ID is valid on one machine only
