"""Routes a request by its port: to the public application, or to the admins' on a port of its own.

The port is that of the socket which accepted the connection (`scope["server"]`, the connection's local address, which
uvicorn gets from the kernel), never from a header, and each port has its own router. So no spelling of a path, of
`Host` or of a forwarding header reaches the other application.
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
from slipstream_gateway.api.http import Receive, Scope, Send, send_error, trim_headers

Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]
Respond = Callable[[Request], Awaitable[Response]]
Lifespan = Callable[[Starlette], AbstractAsyncContextManager[None]]
RequestCheck = Callable[[Scope], Awaitable[None]]
"""Raises a `SlipstreamError` (401, 403) if a request is refused by its headers alone."""


async def allow_all(scope: Scope) -> None:
    """The check that passes every request."""


class Checked:
    """An endpoint for the requests that pass `check`."""

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
    """The public application with a fast path to the generation endpoints: they handle all errors themselves, and the
    router with its two middlewares would cost a tenth of a request. `check` applies to every request except those to
    the paths `unchecked`."""

    def __init__(
        self,
        app: Starlette,
        posts: Mapping[str, Asgi],
        *,
        check: RequestCheck = allow_all,
        unchecked: Collection[str] = (),
    ) -> None:
        self.app = app
        self._posts = {path: Checked(endpoint, check) for path, endpoint in posts.items()}
        self._unchecked = frozenset(unchecked)
        self._checked = Checked(app, check)

    def endpoint(self, scope: Scope) -> Asgi:
        """The application for a request, or for the events of the process."""
        if scope["type"] != "http" or scope["path"] in self._unchecked:
            return self.app
        return self._posts.get(scope["path"], self._checked) if scope["method"] == "POST" else self._checked


class PortRouter:
    """The whole application. Without `admin_port` all requests go to the public one."""

    def __init__(self, public: FastPaths, *, admin: Asgi | None = None, admin_port: int | None = None) -> None:
        self._public = public
        self._admin = admin
        self._admin_port = admin_port

    def with_lifespan(self, lifespan: Lifespan) -> PortRouter:
        """The same router with `lifespan`, which uvicorn enters once per process."""
        self._public.app.router.lifespan_context = lifespan
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            trim_headers(scope)
        admin, server = self._admin, scope.get("server")
        if admin is None or server is None or server[1] != self._admin_port:
            await self._public.endpoint(scope)(scope, receive, send)
        else:
            await admin(scope, receive, send)


def application(routes: Sequence[BaseRoute]) -> Starlette:
    """A router whose errors all have OpenAI's form. Paths match exactly: a trailing slash is not redirected."""
    app = Starlette(routes=list(routes), exception_handlers={HTTPException: _http_error, Exception: _internal_error})
    app.router.redirect_slashes = False
    return app


async def _http_error(request: Request, exc: Exception) -> Response:
    """The response for unknown paths and methods, in OpenAI's form."""
    status = exc.status_code if isinstance(exc, HTTPException) else 500
    headers = dict(exc.headers or {}) if isinstance(exc, HTTPException) else {}
    what = f"Invalid URL ({request.method} {request.url.path})"
    message = f"Method not allowed: {request.method} {request.url.path}" if status == 405 else what
    return Response(http_error_body(status, message), status, headers, "application/json")


async def _internal_error(request: Request, exc: Exception) -> Response:
    reply = error_reply(exc)
    return Response(reply.body, reply.status, media_type="application/json")
