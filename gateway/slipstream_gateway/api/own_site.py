"""The requests that a gateway without keys accepts on the loopback: those of programs and pages of this machine."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import urlsplit

from slipstream_core.errors import Forbidden, shorten
from slipstream_core.hosts import is_loopback_address, without_port

from slipstream_gateway.api.http import Scope
from slipstream_gateway.api.port_router import RequestCheck


def own_site(bound: str) -> RequestCheck:
    """A check for a listener on the loopback address or name `bound`. It raises `Forbidden`.

    `Host` must be `bound`, another loopback address, or `localhost`: a page of another site may let its own name
    resolve to this machine (DNS rebinding), but its browser still sends that name in `Host`. `Origin`, which browsers
    send with a page's POST requests, must be a page of such a host. Programs send no `Origin`, and HTTP/1.0 clients no
    `Host`.
    """
    names = ("localhost", bound.lower())

    @lru_cache(maxsize=64)
    def is_own(host: str) -> bool:
        return host in names or is_loopback_address(host)

    async def check(scope: Scope) -> None:
        for name, value in scope["headers"]:
            if name == b"host" and not is_own(without_port(sent := value.decode("latin-1"))):
                ways = "a loopback address of this machine or 'localhost'"
                raise Forbidden(f"Invalid header 'host': without API keys, expected {ways}, got '{shorten(sent)}'.")
            if name == b"origin" and not is_own(_host_of(sent := value.decode("latin-1"))):
                what = "without API keys, requests from pages of other sites are refused"
                raise Forbidden(f"Invalid header 'origin': {what}, got '{shorten(sent)}'.")

    return check


def _host_of(origin: str) -> str:
    """The host of an origin; empty if it has none, such as `null`."""
    try:
        return urlsplit(origin).hostname or ""
    except ValueError:
        return ""
