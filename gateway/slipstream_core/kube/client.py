"""A client of the Kubernetes API: plain JSON in and out, a deadline on every call, errors that say whether to retry.

The generated classes of the official client are not used: they turn every answer into models, which costs memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlencode

import aiohttp
import msgspec
from kubernetes.aio.client import ApiClient
from kubernetes.aio.client.rest import RESTClientObject

from slipstream_core.errors import CommandError
from slipstream_core.kube.credentials import load_credentials, unusable
from slipstream_core.kube.environment import kubeconfig_like_kubectl
from slipstream_core.kube.errors import (
    KubeError,
    KubeNotFound,
    KubeUnavailable,
    KubeUnreachable,
    NoCredentials,
    error_of,
)

CALL_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 3.0
LIST_TIMEOUT_S = 60.0
LIST_SILENCE_S = 10.0
MAX_LINE_BYTES = 16 * 1024 * 1024  # etcd's own limit for an object is an eighth of it
MAX_PAGES = 1000
PAGE = 100  # a policy with all that the operator keeps in its status may have 300 KB
RELOAD_S = 10.0

_JSON = "application/json"
_MERGE_PATCH = "application/merge-patch+json"
_APPLY_PATCH = "application/apply-patch+yaml"

# These options end the connections of a peer that disappeared, such as a lost node, within about 20 s.
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000),
)

Json = dict[str, Any]
_log = logging.getLogger(__name__)


class Listed(NamedTuple):
    """All objects of a collection, and the resource version of the collection."""

    items: list[Json]
    version: str


class KubeClient:
    """Calls to one cluster. `kubeconfig` None: with the service account of the pod. Every call raises `KubeError`.

    The client loads its credentials at the first call, and again after either side rejected the other's, at most every
    `reload_s`. The library reads the token of a pod again every minute, since it expires.
    """

    def __init__(
        self,
        kubeconfig: Path | None,
        *,
        name: str,
        context: str | None = None,
        call_timeout_s: float = CALL_TIMEOUT_S,
        list_silence_s: float = LIST_SILENCE_S,
        reload_s: float = RELOAD_S,
        trust_env: bool = True,
        on_write: Callable[[str, str], None] | None = None,
    ) -> None:
        """`name` is the user agent and the field manager. `trust_env`: proxies of the environment are used, at the
        price of reading ~/.netrc in a thread for each call. `on_write` is called after each successful write with its
        HTTP method and path."""
        self.namespace = ""
        self.url = ""
        self.server_ahead = timedelta()  # by how much the server's clock is ahead, as of its last answer
        self._kubeconfig, self._context = kubeconfig, context
        self._name = name
        self._call_timeout_s, self._list_silence_s = call_timeout_s, list_silence_s
        self._reload_s = reload_s
        self._trust_env = trust_env
        self._on_write = on_write
        self._loading = asyncio.Lock()
        self._client: ApiClient | None = None
        self._calls: dict[ApiClient, int] = {}
        self._loaded_s = 0.0

    @classmethod
    async def for_command(cls, *, kubeconfig: Path | None, context: str | None) -> Self:
        """A client for a command that a person runs, with the credentials that kubectl would use.

        Raises:
            CommandError: there are none, or they cannot be used.
        """
        client = cls(kubeconfig_like_kubectl(kubeconfig, context=context), name="slipstream", context=context)
        return await client.connect()

    async def connect(self) -> Self:
        """Load the credentials now.

        Raises:
            CommandError: they cannot be used.
        """
        try:
            async with self._connected():
                return self
        except NoCredentials as exc:
            raise CommandError(str(exc), exit_code=2) from exc

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def get(self, path: str) -> Json:
        return await self._call("GET", path)

    async def find(self, path: str) -> Json | None:
        """The object at `path`; None where there is none."""
        try:
            return await self.get(path)
        except KubeNotFound:
            return None

    async def list(
        self, path: str, *, selector: str = "", fields: str = "", trim: Callable[[Json], Json] = lambda item: item
    ) -> Listed:
        """Every object of the collection, each with its kind, read in pages. `selector` is one of labels, `fields` one
        of fields. `trim` makes an object smaller before it is kept. A page has more time than other calls, but must not
        stall."""
        query = {"limit": str(PAGE)}
        query |= {name: text for name, text in (("labelSelector", selector), ("fieldSelector", fields)) if text}
        items: list[Json] = []
        for _ in range(MAX_PAGES):
            page = await self._call("GET", path, query, total_s=LIST_TIMEOUT_S, silence_s=self._list_silence_s)
            kind = {"apiVersion": page.get("apiVersion"), "kind": str(page.get("kind")).removesuffix("List")}
            items += [trim(kind | item) for item in page.get("items") or ()]
            metadata = page.get("metadata") or {}
            if not (token := metadata.get("continue")):
                return Listed(items, metadata.get("resourceVersion") or "0")
            if token == query.get("continue"):
                raise KubeUnavailable(f"{path}: the list repeats the same page")
            query["continue"] = token
        raise KubeUnavailable(f"{path}: the list has more than {MAX_PAGES} pages of {PAGE}")

    async def create(self, path: str, body: Mapping[str, Any]) -> Json:
        """Create an object in the collection at `path`."""
        return await self._write("POST", path, body)

    async def replace(self, path: str, body: Mapping[str, Any]) -> Json:
        """Write the whole object, unless it has changed since `body` was read."""
        return await self._write("PUT", path, body)

    async def merge(self, path: str, body: Mapping[str, Any]) -> Json:
        """Change the object by a JSON merge patch."""
        return await self._write("PATCH", path, body, content_type=_MERGE_PATCH)

    async def apply(self, path: str, body: Mapping[str, Any]) -> Json:
        """Applies `body` on the server's side. This client takes over its fields from their present managers."""
        return await self._write("PATCH", path, body, content_type=_APPLY_PATCH, query={"force": "true"})

    async def delete(self, path: str, *, uid: str | None = None) -> None:
        """Delete the object, its dependants in the background. With `uid`: only that very object. It is no error if the
        object is gone already."""
        preconditions = {"preconditions": {"uid": uid}} if uid is not None else {}
        with contextlib.suppress(KubeNotFound):
            await self._call("DELETE", path, body={**preconditions, "propagationPolicy": "Background"})
            self._written("DELETE", path)

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], *, silence_s: float
    ) -> AsyncIterator[AsyncIterator[Sequence[bytes]]]:
        """The lines of a streamed answer, in batches as they arrive. It fails after `silence_s` without data."""
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S, sock_read=silence_s)
        with self._mapped(call := f"WATCH {path}"):
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(self._call_timeout_s):
                    client = await stack.enter_async_context(self._connected())
                    response = await self._send(client, "GET", path, query, limits=timeout)
                    await self._raise_for_status(client, response, call)
                try:
                    yield _lines(response)
                finally:
                    response.close()

    async def aclose(self) -> None:
        """Close the connections. No call may be running."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _write(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any],
        *,
        content_type: str = _JSON,
        query: Mapping[str, str] | None = None,
    ) -> Json:
        query = {"fieldManager": self._name, **(query or {})}
        answer = await self._call(method, path, query, body=body, content_type=content_type)
        self._written(method, path)
        return answer

    def _written(self, method: str, path: str) -> None:
        if self._on_write is not None:
            self._on_write(method, path)

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: Mapping[str, Any] | None = None,
        content_type: str = _JSON,
        total_s: float | None = None,
        silence_s: float | None = None,
    ) -> Json:
        total_s = self._call_timeout_s if total_s is None else total_s
        timeout = aiohttp.ClientTimeout(total=total_s, sock_connect=CONNECT_TIMEOUT_S, sock_read=silence_s)
        with self._mapped(call := f"{method} {path}"):
            async with asyncio.timeout(total_s), self._connected() as client:
                response = await self._send(client, method, path, query, body, content_type, limits=timeout)
                await self._raise_for_status(client, response, call)
                data = await response.read()
        try:
            answer: Json = msgspec.json.decode(data, type=dict)
        except msgspec.DecodeError as exc:
            raise KubeUnavailable(f"the answer is not a JSON object: {exc} ({call})") from exc
        return answer

    async def _send(
        self,
        client: ApiClient,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None = None,
        content_type: str = _JSON,
        *,
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": _JSON, "User-Agent": self._name, "Content-Type": content_type}
        await client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        url = f"{self.url}{path}?{urlencode(query)}" if query else f"{self.url}{path}"
        try:
            answer = await client.rest_client.request(method, url, headers=headers, body=body, _request_timeout=limits)
        except aiohttp.ClientSSLError:  # the cluster's certificates may have been renewed
            self._forget_credentials(client)
            raise
        response: aiohttp.ClientResponse = answer.response
        with contextlib.suppress(KeyError, ValueError, TypeError):  # no header, or one that is not a date
            self.server_ahead = parsedate_to_datetime(response.headers["Date"]) - datetime.now(UTC)
        return response

    async def _raise_for_status(self, client: ApiClient, response: aiohttp.ClientResponse, call: str) -> None:
        if response.status < 400:
            return
        try:
            data = await response.read()
        finally:
            response.release()
        if response.status == 401:
            self._forget_credentials(client)
        raise error_of(response.status, data, call=call, retry_after=response.headers.get("Retry-After"))

    def _forget_credentials(self, client: ApiClient) -> None:
        """Load the credentials again for the next call, unless `client` is not the latest or was loaded just now. Calls
        that are under way with the old ones end as they may."""
        if client is self._client and time.monotonic() - self._loaded_s > self._reload_s:
            _log.info("the credentials of the cluster are loaded again")
            self._client = None

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[ApiClient]:
        """The connections, for one call. Those of replaced credentials are closed after the last call with them."""
        async with self._loading:
            if self._client is None:
                self._client, self._loaded_s = await self._load(), time.monotonic()
            client = self._client
            self._calls[client] = self._calls.get(client, 0) + 1
        try:
            yield client
        finally:
            self._calls[client] -= 1
            if not self._calls[client]:
                del self._calls[client]
                if client is not self._client:
                    await client.close()

    async def _load(self) -> ApiClient:
        configuration, self.namespace = await load_credentials(self._kubeconfig, context=self._context)
        configuration.client_session_kwargs = {"trust_env": self._trust_env}
        self.url = str(configuration.host)
        try:
            client = ApiClient(configuration)
            client.rest_client = _Connections(configuration)
        except (OSError, ValueError) as exc:  # certificates that cannot be read
            raise unusable(self._kubeconfig, exc) from exc
        return client

    @contextlib.contextmanager
    def _mapped(self, call: str) -> Iterator[None]:
        """Errors of the connection as `KubeUnreachable`."""
        try:
            yield
        except KubeError:
            raise
        except TimeoutError as exc:
            raise KubeUnreachable(f"the API server {self.url} did not answer in time ({call})") from exc
        except (aiohttp.ClientError, OSError) as exc:
            cause = exc if str(exc) else type(exc).__name__
            raise KubeUnreachable(f"the API server {self.url} cannot be reached: {cause} ({call})") from exc


class _Connections(RESTClientObject):
    """The client's connections, without a limit on their number, and with keep-alive probes that find a lost peer."""

    def _create_connector(self) -> aiohttp.TCPConnector:
        return aiohttp.TCPConnector(limit=0, ssl=self.ssl_context, socket_factory=_open_socket)


def _open_socket(info: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = info
    opened = socket.socket(family, kind, protocol)
    opened.setblocking(False)
    for level, name, value in _KEEP_ALIVE:
        opened.setsockopt(level, name, value)
    return opened


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[Sequence[bytes]]:
    rest = b""
    while chunk := await response.content.readany():
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            raise KubeUnavailable(f"a line of the answer is longer than {MAX_LINE_BYTES} bytes")
        if lines:
            yield lines
