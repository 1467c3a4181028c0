"""The application, assembled in one place from its settings."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import AsyncIterator, Mapping

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slipstream_gateway.api.errors import error_reply, http_error_body
from slipstream_gateway.api.generate import GenerateEndpoint
from slipstream_gateway.api.health import HealthEndpoint
from slipstream_gateway.api.http import Receive, Scope, Send
from slipstream_gateway.api.models import ModelsEndpoint
from slipstream_gateway.api.parse import parse_chat_request, parse_completion_request, parse_request
from slipstream_gateway.api.route import RouteEndpoint
from slipstream_gateway.classify import RuleClassifier
from slipstream_gateway.director.admission import Admission
from slipstream_gateway.director.director import Director
from slipstream_gateway.director.fleet import Fleet, ReplicaKey
from slipstream_gateway.following import following
from slipstream_gateway.manifest import Protocol
from slipstream_gateway.settings import GatewaySettings, secret
from slipstream_gateway.telemetry.providers import Telemetry
from slipstream_gateway.telemetry.workers import Siblings
from slipstream_gateway.upstreams.base import Upstream

_log = logging.getLogger(__name__)
_CHAT = "/v1/chat/completions"
_COMPLETIONS = "/v1/completions"
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def build_app(settings: GatewaySettings) -> HotPaths:
    """The ASGI application. Its lifespan loads the manifest and follows it; `ManifestError` ends the start."""
    limits = settings.limits
    fleet = Fleet(lambda key: connect(key, settings), clock=time.monotonic)
    admission = Admission(
        max_in_flight=limits.max_in_flight,
        max_queued=limits.max_queued,
        queue_timeout_s=limits.queue_timeout_s,
    )
    telemetry = Telemetry(settings.telemetry, in_flight=lambda: admission.in_flight, queued=lambda: admission.queued)
    siblings = Siblings(settings.metrics_folder, telemetry.exposition)
    director = Director(
        fleet=fleet,
        classifier=RuleClassifier(),
        admission=admission,
        observer=telemetry,
        deadlines=settings.deadlines,
    )

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with following(settings, fleet), siblings:
            gc.collect()
            gc.freeze()  # what start-up built stays; collections need not walk it
            try:
                yield
            finally:
                gc.unfreeze()
                await fleet.aclose()
                await asyncio.to_thread(telemetry.close)

    async def metrics(_: Request) -> Response:
        return Response(await siblings.collect(), headers={"content-type": _METRICS_TYPE})

    body_limit = limits.max_body_bytes
    models, health = ModelsEndpoint(fleet, started=int(time.time())), HealthEndpoint(fleet)
    chat = GenerateEndpoint(director, parse_chat_request, telemetry, max_body_bytes=body_limit)
    completions = GenerateEndpoint(director, parse_completion_request, telemetry, max_body_bytes=body_limit)
    route = RouteEndpoint(director, parse=parse_request, max_body_bytes=body_limit)
    app = Starlette(
        routes=[
            Route(_CHAT, chat, methods=["POST"]),
            Route(_COMPLETIONS, completions, methods=["POST"]),
            Route("/v1/models", models.list, methods=["GET"]),
            Route("/v1/models/{model:path}", models.get, methods=["GET"]),
            Route("/v1/route", route.post, methods=["POST"]),
            Route("/health/live", health.live, methods=["GET"]),
            Route("/health/ready", health.ready, methods=["GET"]),
            Route("/metrics", metrics, methods=["GET"]),
        ],
        exception_handlers={HTTPException: _http_error, Exception: _internal_error},
        lifespan=lifespan,
    )
    return HotPaths(app, {_CHAT: chat, _COMPLETIONS: completions})


class HotPaths:
    """The application, with the way to the generation endpoints cut short: they handle every error themselves, and
    the router and its two middlewares would cost a tenth of what a request costs."""

    def __init__(self, app: Starlette, posts: Mapping[str, GenerateEndpoint]) -> None:
        self._app = app
        self._posts = posts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            endpoint = self._posts.get(scope["path"])
            if endpoint is not None:
                await endpoint(scope, receive, send)
                return
        await self._app(scope, receive, send)


def connect(key: ReplicaKey, settings: GatewaySettings) -> Upstream:
    """A live upstream for a replica. Clients of protocols that no manifest names are never imported."""
    connect_timeout_s = settings.deadlines.connect_s
    if key.protocol is Protocol.TRITON:
        from slipstream_gateway.upstreams.triton_server import TritonUpstream

        address = key.endpoint.removeprefix("grpc://")
        return TritonUpstream(address, model=key.model, connect_timeout_s=connect_timeout_s)
    from slipstream_gateway.upstreams.openai_server import OpenAiUpstream

    api_key = secret(key.api_key_env) if key.api_key_env else None
    if key.api_key_env and api_key is None:
        _log.warning("the manifest names %s for an API key, but it is not set", key.api_key_env)
    return OpenAiUpstream(key.endpoint, connect_timeout_s=connect_timeout_s, api_key=api_key)


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
