"""The way to the cluster's API: credentials by the official client, plain values in and out, a deadline on everything.

The client's generated classes are left alone: they would turn every answer into models, and cost memory for nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
import msgspec
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config
from yaml import YAMLError

from slipstream_gateway.sources.cluster.errors import ClusterError, ClusterUnreachable, refused

CALL_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 3.0
LIST_TIMEOUT_S = 60.0
LIST_SILENCE_S = 10.0
MAX_LINE_BYTES = 16 * 1024 * 1024  # etcd's own limit for an object is an eighth of it
RELOAD_S = 10.0
_MERGE_PATCH = "application/merge-patch+json"

# A peer that is gone without a word, such as a lost node, ends its connections within about 20 s.
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000),
)

# What the client raises for a kubeconfig that it cannot use. It goes by the shape that it expects: any other one, such
# as a list or a number in place of a mapping, ends in whatever Python says of that.
_UNUSABLE = (ConfigException, OSError, YAMLError, LookupError, ValueError, TypeError, AttributeError)

Json = dict[str, Any]
_log = logging.getLogger(__name__)


class Access:
    """Calls to one cluster. `kubeconfig` None: as a pod of the cluster.

    Credentials are loaded at the first call, and again after either side did not accept the other's, but not more
    often than every `reload_s`. The token of a pod is read again every minute by the client, since it expires.
    """

    def __init__(
        self,
        kubeconfig: Path | None,
        *,
        call_timeout_s: float = CALL_TIMEOUT_S,
        list_silence_s: float = LIST_SILENCE_S,
        reload_s: float = RELOAD_S,
    ) -> None:
        self._kubeconfig = kubeconfig
        self._reload_s = reload_s
        self._call_timeout_s = call_timeout_s
        self._list_silence_s = list_silence_s
        self._loading = asyncio.Lock()
        self._client: ApiClient | None = None
        self._calls: dict[ApiClient, int] = {}
        self._loaded_s = 0.0

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        """Raises `ClusterError`, as do all of these."""
        return await self._call("GET", path, query=query)

    async def page(self, path: str, query: Mapping[str, str]) -> Json:
        """A page of a list: it may be large and the way narrow, so that it has long, but must not stop on its way."""
        return await self._call("GET", path, query=query, total_s=LIST_TIMEOUT_S, silence_s=self._list_silence_s)

    async def create(self, path: str, body: Json) -> Json:
        return await self._call("POST", path, body=body)

    async def patch(self, path: str, body: Json) -> Json:
        """By a merge patch."""
        return await self._call("PATCH", path, body=body, content_type=_MERGE_PATCH)

    async def delete(self, path: str) -> None:
        await self._call("DELETE", path)

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], *, silence_s: float
    ) -> AsyncIterator[AsyncIterator[list[bytes]]]:
        """The lines of a long answer, as many at a time as have come. It must not be silent for `silence_s`."""
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S, sock_read=silence_s)
        with _mapped(path):
            async with contextlib.AsyncExitStack() as until_its_end:
                async with asyncio.timeout(self._call_timeout_s):
                    client = await until_its_end.enter_async_context(self._connected())
                    response = await self._send(client, "GET", path, query=query, deadline=timeout)
                    await self._raise_for_status(client, response, path)
                try:
                    yield _lines(response)
                finally:
                    response.close()

    async def aclose(self) -> None:
        """For when no call is under way."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
        total_s: float | None = None,
        silence_s: float | None = None,
    ) -> Json:
        total_s = self._call_timeout_s if total_s is None else total_s
        timeout = aiohttp.ClientTimeout(total=total_s, sock_connect=CONNECT_TIMEOUT_S, sock_read=silence_s)
        with _mapped(path):
            async with asyncio.timeout(total_s), self._connected() as client:
                response = await self._send(
                    client, method, path, query=query, body=body, content_type=content_type, deadline=timeout
                )
                await self._raise_for_status(client, response, path)
                data = await response.read()
        try:
            answer: Json = msgspec.json.decode(data, type=dict)
        except msgspec.DecodeError as exc:
            raise ClusterError(f"{path}: the answer is not a JSON object: {exc}") from exc
        return answer

    async def _send(
        self,
        client: ApiClient,
        method: str,
        path: str,
        *,
        deadline: aiohttp.ClientTimeout,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json", "User-Agent": "slipstream-gateway", "Content-Type": content_type}
        await client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        url = f"{client.configuration.host}{path}"
        if query:
            url = f"{url}?{urlencode(query)}"
        try:
            answer = await client.rest_client.request(
                method, url, headers=headers, body=body, _request_timeout=deadline
            )
        except aiohttp.ClientSSLError:  # the cluster's certificates may have been renewed
            self._forget_credentials(client)
            raise
        response: aiohttp.ClientResponse = answer.response
        return response

    async def _raise_for_status(self, client: ApiClient, response: aiohttp.ClientResponse, path: str) -> None:
        if response.status < 400:
            return
        try:
            message = _message_of(await response.read()) or response.reason or ""
        finally:
            response.release()
        if response.status == 401:
            self._forget_credentials(client)
        raise refused(response.status, f"{path}: {response.status} {message}")

    def _forget_credentials(self, client: ApiClient) -> None:
        """Those of `client` are loaded again for the next call, unless that was done just now. Calls that are under way
        by them end as they may."""
        if client is self._client and time.monotonic() - self._loaded_s > self._reload_s:
            _log.info("the cluster's credentials are loaded again")
            self._client = None

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[ApiClient]:
        """The client, for one call. One that was given up is closed with the last call that uses it."""
        async with self._loading:
            if self._client is None:
                self._client, self._loaded_s = await _new_client(self._kubeconfig), time.monotonic()
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


class _Connections(RESTClientObject):
    """The client's connections, with probes that find out when the other side is gone, and as many as it takes."""

    def _create_connector(self) -> aiohttp.TCPConnector:
        return aiohttp.TCPConnector(limit=0, ssl=self.ssl_context, socket_factory=_open_socket)


def _open_socket(info: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = info
    opened = socket.socket(family, kind, protocol)
    opened.setblocking(False)
    for level, name, value in _KEEP_ALIVE:
        opened.setsockopt(level, name, value)
    return opened


async def _new_client(kubeconfig: Path | None) -> ApiClient:
    configuration = Configuration()
    try:
        if kubeconfig is None:
            load_incluster_config(configuration)
        else:
            await load_kube_config(str(kubeconfig), client_configuration=configuration, persist_config=False)
        if not isinstance(configuration.host, str) or not isinstance(configuration.proxy, str | None):
            raise TypeError("the server's address and that of its proxy must be text")
        client = ApiClient(configuration)
        client.rest_client = _Connections(configuration)
    except _UNUSABLE as exc:
        where = kubeconfig or "the pod's service account"
        said = " ".join(str(exc).split()) or type(exc).__name__
        raise ClusterUnreachable(f"no credentials from {where}: {said}") from exc
    return client


@contextlib.contextmanager
def _mapped(path: str) -> Iterator[None]:
    """Errors of the connection as `ClusterUnreachable`."""
    try:
        yield
    except TimeoutError as exc:
        raise ClusterUnreachable(f"{path}: no answer in time") from exc
    except (aiohttp.ClientError, OSError) as exc:
        raise ClusterUnreachable(f"{path}: {exc or type(exc).__name__}") from exc


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[list[bytes]]:
    rest = b""
    while chunk := await response.content.readany():
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            raise ClusterError(f"a line of an answer is longer than {MAX_LINE_BYTES} bytes")
        if lines:
            yield lines


def _message_of(body: bytes) -> str:
    """What the server says went wrong; empty where it says nothing that can be read."""
    try:
        return str(msgspec.json.decode(body, type=dict).get("message", ""))
    except msgspec.DecodeError:
        return body[:200].decode("utf-8", "replace")
