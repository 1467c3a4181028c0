"""Which application answers: the public one, or the admins' on a port of its own.

A request's side is the port of the socket that it came in by (`scope["server"]`, the connection's own local address,
which uvicorn asks the kernel for), never a header; and each side has a router of its own. So no spelling of a path, of
`Host` or of a forwarding header crosses from one to the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from slipstream_core.errors import SlipstreamError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from slipstream_gateway.api.errors import error_reply, http_error_body
from slipstream_gateway.api.http import Receive, Scope, Send, send_error

Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]
Respond = Callable[[Request], Awaitable[Response]]
Lifespan = Callable[[Starlette], AbstractAsyncContextManager[None]]
RequestCheck = Callable[[Scope], Awaitable[None]]
"""Raises a `SlipstreamError` (401, 403) where a request is refused by its head alone."""


async def anybody(scope: Scope) -> None:
    """The check that lets every request pass."""


class Checked:
    """An endpoint that answers those alone whom `check` lets pass."""

    def __init__(self, endpoint: Asgi, check: RequestCheck) -> None:
        self._endpoint = endpoint
        self._check = check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._check(scope)
        except SlipstreamError as exc:
            await send_error(send, error_reply(exc), [])
            return
        await self._endpoint(scope, receive, send)


class FastPaths:
    """The public side, with the way to the generation endpoints cut short: they handle every error themselves, and
    the router and its two middlewares would cost a tenth of what a request costs. `check` is asked about every request
    but those of the paths `unchecked`."""

    def __init__(
        self,
        app: Starlette,
        posts: Mapping[str, Asgi],
        *,
        check: RequestCheck = anybody,
        unchecked: Collection[str] = (),
    ) -> None:
        self.app = app
        self._posts = posts
        self._unchecked = frozenset(unchecked)
        self._checked = Checked(self._route, check)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self._unchecked:
            await self._checked(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            endpoint = self._posts.get(scope["path"])
            if endpoint is not None:
                await endpoint(scope, receive, send)
                return
        await self.app(scope, receive, send)


class PortRouter:
    """The whole application. Without `admin_port` there is one side."""

    def __init__(self, public: FastPaths, *, admin: Asgi | None = None, admin_port: int | None = None) -> None:
        self._public = public
        self._admin = admin
        self._admin_port = admin_port

    def with_lifespan(self, lifespan: Lifespan) -> PortRouter:
        """The same, alive for as long as `lifespan` lasts; uvicorn enters it once per process."""
        self._public.app.router.lifespan_context = lifespan
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._admin is not None:
            server = scope.get("server")
            if server is not None and server[1] == self._admin_port:
                await self._admin(scope, receive, send)
                return
        await self._public(scope, receive, send)


def application(routes: Sequence[BaseRoute]) -> Starlette:
    """A router whose every error is in OpenAI's form. A path is what it says: no slash more or less is forgiven."""
    app = Starlette(routes=list(routes), exception_handlers={HTTPException: _http_error, Exception: _internal_error})
    app.router.redirect_slashes = False
    return app


async def _http_error(request: Request, exc: Exception) -> Response:
    """Paths and methods that do not exist, in OpenAI's form."""
    status = exc.status_code if isinstance(exc, HTTPException) else 500
    headers = dict(exc.headers or {}) if isinstance(exc, HTTPException) else {}
    what = f"Invalid URL ({request.method} {request.url.path})"
    message = f"Not allowed: {request.method} {request.url.path}" if status == 405 else what
    return Response(http_error_body(status, message), status, headers, "application/json")


async def _internal_error(request: Request, exc: Exception) -> Response:
    reply = error_reply(exc)
    return Response(reply.body, reply.status, media_type="application/json")
