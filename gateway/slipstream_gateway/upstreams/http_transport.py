"""An OpenAI application over HTTP.

Requests of clients go through `http1`, all others through aiohttp's client: a control route must be reached by the same
TLS credentials and address rules.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Mapping
from functools import lru_cache

import aiohttp
from slipstream_core.checked_resolver import CheckedResolver
from slipstream_core.endpoint_rules import EndpointRules
from slipstream_core.errors import ConnectTimeout, UpstreamFailed, UpstreamTimeout, UpstreamUnavailable
from slipstream_core.network_errors import NETWORK_ERRORS, describe_network_error
from yarl import URL

from slipstream_gateway.upstreams.http1 import KEEP_ALIVE_S, BrokenExchange, Http1Client, Http1Response, NotHttp
from slipstream_gateway.upstreams.openai_bodies import read_body
from slipstream_gateway.upstreams.transport import Fetched

_TLS_HINT = " (over TLS; a server that requires a client certificate closes connections this way, see --upstream-cert)"


class HttpTransport:
    """The connections to the server at `base_url` (`http://host:port`, with or without a closing `/v1`)."""

    answers_probes = False
    is_of_engines = False
    losses = 0

    def __init__(
        self,
        base_url: str,
        *,
        connect_timeout_s: float,
        tls: ssl.SSLContext | None = None,
        rules: EndpointRules | None = None,
    ) -> None:
        self._root = URL(base_url.rstrip("/").removesuffix("/v1") + "/")
        self.address = f"{self._root.host}:{self._root.port}"
        self._target = lru_cache(maxsize=16)(lambda path: self._root.join(URL(path)).raw_path_qs)
        resolver = CheckedResolver(rules) if rules is not None else None
        self._client = Http1Client(
            self._root,
            connect_timeout_s=connect_timeout_s,
            tls=(tls or ssl.create_default_context()) if self._root.scheme == "https" else None,
            resolver=resolver,
        )
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S, ssl=tls or True, resolver=resolver),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s),
        )

    async def connected(self) -> None:
        """Returns at once: each request has a connection of its own."""

    async def post(
        self, path: str, headers: Mapping[str, str], body: bytes, *, timeout_s: float | None = None
    ) -> Http1Response:
        """`timeout_s` is not sent: servers read the client's deadline from its header, if at all."""
        try:
            return await self._client.post(self._target(path), headers, body)
        except TimeoutError as exc:
            raise ConnectTimeout("The upstream did not accept a connection in time.") from exc
        except NotHttp as exc:
            raise UpstreamFailed("The upstream's response is not HTTP.", detail=describe_network_error(exc)) from None
        except OSError as exc:
            hint = _TLS_HINT if self._root.scheme == "https" and _is_hung_up(exc) else ""
            detail = f"{describe_network_error(exc)}{hint}"
            broke = isinstance(exc, BrokenExchange)
            raise UpstreamUnavailable("The upstream is unreachable.", detail=detail, broke=broke) from None

    async def fetch(
        self, method: str, path: str, headers: Mapping[str, str], *, timeout_s: float | None = None
    ) -> Fetched:
        url = self._root.join(URL(path))
        deadline = asyncio.timeout(timeout_s)
        try:
            async with (
                deadline,
                self._session.request(method, url, headers=headers, allow_redirects=False) as response,
            ):
                return Fetched(response.status, await read_body(response))
        except NETWORK_ERRORS as exc:
            if deadline.expired():
                raise UpstreamTimeout("The upstream did not respond in time.") from exc
            raise UpstreamUnavailable("The upstream is unreachable.", detail=describe_network_error(exc)) from None

    async def aclose(self) -> None:
        self._client.close()
        await self._session.close()


def _is_hung_up(error: Exception) -> bool:
    """Whether the server closed the connection. The kind of exception depends on which part was noticed first."""
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return True
    return getattr(error, "errno", None) in (errno.ECONNRESET, errno.EPIPE)
