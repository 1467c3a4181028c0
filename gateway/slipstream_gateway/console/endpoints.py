"""The console's HTTP endpoints: its page with its files, its stream of figures, its kill switch."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from hashlib import sha256
from importlib.resources import files
from typing import NamedTuple

import msgspec
from slipstream_core.errors import InvalidRequest, SlipstreamError
from slipstream_core.hosts import is_address, without_port
from slipstream_core.manifest.kill_switch import MAX_PERSON_CHARS, KillEvent, KillSwitch, NotSwitchable, Who, Why
from slipstream_core.tasks import cancel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from slipstream_gateway.api.errors import error_reply
from slipstream_gateway.api.http import ClientGone, json_response, read_body, read_headers
from slipstream_gateway.api.port_router import RequestCheck
from slipstream_gateway.console.feed import EVERY_S, Feed

_PAGE = "page.html"
_MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


class Asset(NamedTuple):
    """One file with its type and its entity tag."""

    data: bytes
    media_type: str
    tag: str


def load_assets() -> dict[str, Asset]:
    """The files by name."""
    folder = files("slipstream_gateway.console") / "page"
    found = {}
    for item in folder.iterdir():
        media_type = _MEDIA_TYPES.get(item.name.rpartition(".")[2])
        if media_type is not None:
            data = item.read_bytes()
            found[item.name] = Asset(data, media_type, f'"{sha256(data).hexdigest()[:16]}"')
    return found


MAX_VIEWERS = 200
SEND_WITHIN_S = 30.0
_MAX_BODY_BYTES = 16 * 1024
_ASKED_BY = b"x-slipstream-console"

Told = Callable[[KillEvent], None]


class PageEndpoint:
    """The page and its files. They contain no data, so a browser may load them without a key."""

    def __init__(self) -> None:
        self._assets = load_assets()

    async def page(self, request: Request) -> Response:
        return self._answer(request, _PAGE)

    async def asset(self, request: Request) -> Response:
        return self._answer(request, request.path_params["name"])

    def _answer(self, request: Request, name: str) -> Response:
        asset = self._assets.get(name)
        if asset is None:
            return json_response({"error": {"message": f"The console has no file {name!r}."}}, status=404)
        headers = {**_PAGE_HEADERS, "etag": asset.tag}
        if request.headers.get("if-none-match") == asset.tag:
            return Response(status_code=304, headers=headers)
        return Response(asset.data, headers=headers, media_type=asset.media_type)


class EventsEndpoint:
    """`GET /admin/events`: the figures as server-sent events, or once as JSON on request (`application/json`).

    The permission may end during a stream, so `check` is repeated about every second.
    """

    def __init__(self, feed: Feed, check: RequestCheck) -> None:
        self._feed = feed
        self._check = check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
        if "application/json" in request.headers.get("accept", ""):
            body = await self._feed.whole()
            await Response(body, headers=headers, media_type="application/json")(scope, receive, send)
        elif self._feed.viewers >= MAX_VIEWERS:
            message = f"This gateway already has its maximum of {MAX_VIEWERS} viewers."
            await json_response({"error": {"message": message}}, status=503)(scope, receive, send)
        else:
            await self._stream(scope, receive, send)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs until the viewer disconnects, stops reading for a while or loses the admin permission, or the gateway
        stops."""
        head = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
        stopping = asyncio.Event()
        scope["slipstream.shutdown"] = stopping.set
        await send({"type": "http.response.start", "status": 200, "headers": head})
        sending = asyncio.create_task(self._send_all(send))
        ends = [
            sending,
            asyncio.create_task(_gone(receive)),
            asyncio.create_task(stopping.wait()),
            asyncio.create_task(self._refused(scope)),
        ]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # the server stops without waiting any longer; this stream ends like the others
        finally:
            await cancel(*ends)
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(1.0):
                await send({"type": "http.response.body", "body": b""})

    async def _refused(self, scope: Scope) -> None:
        """Returns when the viewer's key is revoked, has expired, or is no longer an admin's."""
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self._check(scope)
            except SlipstreamError:
                return

    async def _send_all(self, send: Send) -> None:
        async with contextlib.aclosing(self._feed.events()) as events:
            async for event in events:
                async with asyncio.timeout(SEND_WITHIN_S):
                    await send({"type": "http.response.body", "body": event, "more_body": True})


class _Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a kill or an unkill."""

    by: Who
    reason: Why = ""


class KillsEndpoint:
    """`POST` and `DELETE /admin/kills/<pair>`: turns a pair's kill switch on and off.

    Only for pages of this gateway and for programs: required are a header that no form can send, a JSON body, and an
    `Origin` (if any) equal to this host. Without keys, the host must be an address or `localhost`, so that no name that
    resolves to this machine can be an origin. `caller` returns the id of the caller's key, empty without keys;
    `on_turn` is called after each turn.
    """

    def __init__(
        self,
        switch: KillSwitch,
        *,
        is_pair: Callable[[str], bool],
        caller: Callable[[Scope], str],
        has_keys: bool,
        on_turn: Told,
    ) -> None:
        self._switch = switch
        self._is_pair = is_pair
        self._caller = caller
        self._has_keys = has_keys
        self._on_turn = on_turn

    async def respond(self, request: Request) -> Response:
        try:
            _check_origin(request, has_keys=self._has_keys)
            pair, change = self._pair(request), await _read_change(request)
            key = self._caller(request.scope)
            by = f"{change.by} ({key})"[:MAX_PERSON_CHARS] if key else change.by
            event = await self._switch.turn(pair, on=request.method == "POST", by=by, reason=change.reason)
        except NotSwitchable as exc:
            return json_response({"error": {"message": str(exc), "type": "not_switchable"}}, status=409)
        except SlipstreamError as exc:
            reply = error_reply(exc)
            return Response(reply.body, reply.status, media_type="application/json")
        except ClientGone:
            return Response(status_code=400)  # the client is gone
        self._on_turn(event)
        return json_response(event)

    def _pair(self, request: Request) -> str:
        pair: str = request.path_params["pair"]
        if not self._is_pair(pair):
            raise InvalidRequest(f"There is no pair {pair!r}.")
        return pair


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _read_change(request: Request) -> _Change:
    body = await read_body(read_headers(request.scope), request.receive, _MAX_BODY_BYTES)
    try:
        change = msgspec.json.decode(body, type=_Change)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidRequest(f"The body must be JSON with 'by' and optionally 'reason': {exc}.") from exc
    if not change.by.strip() or not change.by.isprintable() or not change.reason.replace("\n", " ").isprintable():
        raise InvalidRequest("'by' must not be empty, and it and 'reason' must be plain text.")
    return change


def _check_origin(request: Request, *, has_keys: bool) -> None:
    headers = dict(request.scope["headers"])
    host = headers.get(b"host", b"").decode("latin-1")
    origin = headers.get(b"origin")
    media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if _ASKED_BY not in headers or media_type != b"application/json":
        raise InvalidRequest("The kill switch requires a JSON body and the header 'x-slipstream-console: 1'.")
    if origin is not None and origin.decode("latin-1").partition("://")[2] != host:
        raise InvalidRequest("The kill switch refuses requests from pages of other sites.")
    if headers.get(b"sec-fetch-site", b"same-origin") not in (b"same-origin", b"none"):
        raise InvalidRequest("The kill switch refuses requests from pages of other sites.")
    if not has_keys and (name := without_port(host)) != "localhost" and not is_address(name):
        raise InvalidRequest(
            f"Without API keys, use an address or 'localhost' as the host for the kill switch, not {host!r}."
        )
