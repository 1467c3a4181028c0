"""The API server by `kubernetes.aio`: plain dicts, a deadline on every call, errors that say whether to try again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Self
from urllib.parse import urlencode

import aiohttp
import msgspec
from kubernetes.aio.client import ApiClient, Configuration

from slipstream_operator.cluster.resources import FIELD_MANAGER
from slipstream_operator.errors import (
    ApiConflict,
    ApiError,
    ApiNotFound,
    ApiRejected,
    ApiUnavailable,
)
from slipstream_operator.plan import KubeObject

_DEADLINE_S = 10.0
_PAGE = 500
_WATCH_S = 60
_JSON = "application/json"
_MERGE_PATCH = "application/merge-patch+json"
_APPLY_PATCH = "application/apply-patch+yaml"
_FORCED = {"fieldManager": FIELD_MANAGER, "force": "true"}


class Listed(msgspec.Struct, frozen=True):
    """All objects of a collection, and the version of the whole."""

    items: list[KubeObject]
    version: str


class KubeApi:
    """One connection pool to the API server. Every method raises `ApiError`; `async with` closes it."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        deadline_s: float = _DEADLINE_S,
        on_write: Callable[[str, str], None] | None = None,
    ) -> None:
        """`on_write` hears of every write that was taken: its HTTP method and path."""
        self._client: Any = ApiClient(configuration)  # its methods have no types
        self._deadline_s, self._on_write = deadline_s, on_write

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._client.close()

    async def get(self, path: str) -> KubeObject | None:
        """The object at `path`; None where there is none."""
        try:
            return await self._call("GET", path)
        except ApiNotFound:
            return None

    async def list(self, path: str, *, selector: str = "") -> Listed:
        """Every object of the collection, read in pages, each with its kind."""
        query = {"limit": str(_PAGE)} | ({"labelSelector": selector} if selector else {})
        items: list[KubeObject] = []
        while True:
            page = await self._call("GET", path, query=query)
            kind = {"apiVersion": page["apiVersion"], "kind": page["kind"].removesuffix("List")}
            items += [kind | item for item in page.get("items") or ()]
            metadata = page["metadata"]
            if not metadata.get("continue"):
                return Listed(items, metadata["resourceVersion"])
            query["continue"] = metadata["continue"]

    async def apply(self, path: str, body: KubeObject) -> KubeObject:
        """Server-side apply: the fields of `body` become ours, whoever had them."""
        return await self._call("PATCH", path, body, content_type=_APPLY_PATCH, query=_FORCED)

    async def merge(self, path: str, body: KubeObject) -> KubeObject:
        """JSON merge patch."""
        query = {"fieldManager": FIELD_MANAGER}
        return await self._call("PATCH", path, body, content_type=_MERGE_PATCH, query=query)

    async def create(self, path: str, body: KubeObject) -> KubeObject:
        """Make an object in the collection at `path`."""
        return await self._call("POST", path, body, query={"fieldManager": FIELD_MANAGER})

    async def replace(self, path: str, body: KubeObject) -> KubeObject:
        """Write the whole object, unless it has changed since it was read."""
        return await self._call("PUT", path, body, query={"fieldManager": FIELD_MANAGER})

    async def delete(self, path: str, *, uid: str) -> None:
        """Delete that very object, its dependants in the background. Gone already is well done."""
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        try:
            await self._call("DELETE", path, options)
        except ApiNotFound:
            return

    async def watch(self, path: str, *, selector: str, version: str) -> AsyncIterator[tuple[str, KubeObject]]:
        """The events of a collection since `version`, as type and object, until the server ends the stream.

        Raises:
            ApiError: it ended otherwise, or nothing was heard for longer than it should take.
        """
        what = f"WATCH {path}"
        query = {
            "watch": "true",
            "labelSelector": selector,
            "resourceVersion": version,
            "timeoutSeconds": str(_WATCH_S),
        }
        timeout = aiohttp.ClientTimeout(sock_connect=self._deadline_s, sock_read=_WATCH_S + self._deadline_s)
        try:
            response = await self._send("GET", f"{path}?{urlencode(query)}", None, _JSON, timeout)
            async with response.response as stream:
                if stream.status >= 400:
                    raise _error(what, stream.status, await stream.read(), None)
                async for line in stream.content:
                    event = _decoded(what, line)
                    if event.get("type") == "ERROR":
                        raise ApiUnavailable(f"{what}: {event.get('object', {}).get('message')}")
                    yield event["type"], event["object"]
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as exc:  # ValueError: a line without end
            raise ApiUnavailable(f"{what}: {exc or type(exc).__name__}") from exc

    async def _call(
        self,
        method: str,
        path: str,
        body: KubeObject | None = None,
        *,
        content_type: str = _JSON,
        query: Mapping[str, str] | None = None,
    ) -> KubeObject:
        what = f"{method} {path}"
        url = f"{path}?{urlencode(query)}" if query else path
        try:
            # The client takes time-outs for parts of a call; this one is for all of it, the reading too.
            async with asyncio.timeout(self._deadline_s):
                timeout = aiohttp.ClientTimeout(total=self._deadline_s)
                response = await self._send(method, url, body, content_type, timeout)
                data = await response.read()
        except TimeoutError as exc:
            raise ApiUnavailable(f"{what}: no answer within {self._deadline_s:g} s") from exc
        except (aiohttp.ClientError, OSError) as exc:
            raise ApiUnavailable(f"{what}: {exc or type(exc).__name__}") from exc
        if response.status >= 400:
            raise _error(what, response.status, data, response.headers.get("Retry-After"))
        if self._on_write is not None and method != "GET":
            self._on_write(method, path)
        return _decoded(what, data)

    async def _send(
        self, method: str, url: str, body: KubeObject | None, content_type: str, limits: aiohttp.ClientTimeout
    ) -> Any:
        headers = {"Content-Type": content_type, "Accept": _JSON}
        _, full_url, headers, _, _ = await self._client.param_serialize(
            method, url, header_params=headers, auth_settings=["BearerToken"]
        )
        return await self._client.call_api(method, full_url, header_params=headers, body=body, _request_timeout=limits)


def _decoded(what: str, data: bytes) -> KubeObject:
    try:
        answer: Any = msgspec.json.decode(data)
    except msgspec.DecodeError as exc:
        raise ApiUnavailable(f"{what}: the answer is no JSON") from exc
    if not isinstance(answer, dict):
        raise ApiUnavailable(f"{what}: the answer is no object")
    return answer


def _error(what: str, status: int, data: bytes, retry_after: str | None) -> ApiError:
    try:
        reason = json.loads(data)["message"]
    except (ValueError, KeyError, TypeError):
        reason = data.decode(errors="replace")[:200].strip() or "no reason given"
    message = f"{what}: {status}: {reason}"
    if status in (401, 429) or status >= 500:
        seconds = float(retry_after) if retry_after is not None and retry_after.isdigit() else None
        return ApiUnavailable(message, status=status, retry_after_s=seconds)
    kinds: dict[int, type[ApiError]] = {404: ApiNotFound, 409: ApiConflict}
    return kinds.get(status, ApiRejected)(message, status=status)
