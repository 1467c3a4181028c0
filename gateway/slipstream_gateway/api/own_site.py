"""Which requests a gateway without keys takes on the loopback: those of programs and pages of this machine."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import urlsplit

from slipstream_core.errors import Forbidden, shorten
from slipstream_core.hosts import is_loopback_address, without_port

from slipstream_gateway.api.http import Scope
from slipstream_gateway.api.port_router import RequestCheck


def own_site(bound: str) -> RequestCheck:
    """A check for a listener on the address or name `bound` of the loopback. It raises `Forbidden`.

    `Host` must be `bound`, another address of the loopback, or `localhost`: a page of another site may have its own
    name point here (DNS rebinding), and its browser still says in `Host` which name it used. `Origin`, which browsers
    send with what a page posts, must be a page of such a host. Programs send no `Origin`, and clients of HTTP/1.0 no
    `Host`.
    """
    names = ("localhost", bound.lower())

    @lru_cache(maxsize=64)
    def is_own(host: str) -> bool:
        return host in names or is_loopback_address(host)

    async def check(scope: Scope) -> None:
        for name, value in scope["headers"]:
            if name == b"host" and not is_own(without_port(sent := value.decode("latin-1"))):
                ways = "an address of this machine's loopback or 'localhost'"
                raise Forbidden(f"Invalid header 'host': without keys, expected {ways}, got '{shorten(sent)}'.")
            if name == b"origin" and not is_own(_host_of(sent := value.decode("latin-1"))):
                what = "without keys, pages of other sites are refused"
                raise Forbidden(f"Invalid header 'origin': {what}, got '{shorten(sent)}'.")

    return check


def _host_of(origin: str) -> str:
    """The host of an origin, empty where it has none, such as `null`."""
    try:
        return urlsplit(origin).hostname or ""
    except ValueError:
        return ""
