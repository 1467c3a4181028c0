"""The application, assembled in one place from its settings."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slipstream_gateway.api.errors import error_reply, http_error_body
from slipstream_gateway.api.evidence import EvidenceEndpoint
from slipstream_gateway.api.generate import GenerateEndpoint
from slipstream_gateway.api.health import HealthEndpoint
from slipstream_gateway.api.http import Receive, Scope, Send
from slipstream_gateway.api.models import ModelsEndpoint
from slipstream_gateway.api.parse import parse_chat_request, parse_completion_request, parse_request
from slipstream_gateway.api.route import RouteEndpoint
from slipstream_gateway.classify import LinearClassifier, default_model, load_model
from slipstream_gateway.director.admission import Admission
from slipstream_gateway.director.configuration import ConfigurationSource
from slipstream_gateway.director.director import Classifier, Director
from slipstream_gateway.director.fleet import Fleet, ReplicaKey
from slipstream_gateway.director.observing import Outcomes, OutcomeStore
from slipstream_gateway.director.parity import Parity
from slipstream_gateway.errors import CommandError
from slipstream_gateway.following import FileSource
from slipstream_gateway.learning import Evidence, Learner
from slipstream_gateway.manifest import Protocol
from slipstream_gateway.settings import GatewaySettings, secret
from slipstream_gateway.stores.memory import MemoryStore
from slipstream_gateway.telemetry.providers import Telemetry
from slipstream_gateway.telemetry.workers import Siblings
from slipstream_gateway.upstreams.base import Upstream

if TYPE_CHECKING:
    from slipstream_gateway.stores.redis_store import RedisStore

_Lifespan = AbstractAsyncContextManager[None]
_log = logging.getLogger(__name__)
_CHAT = "/v1/chat/completions"
_COMPLETIONS = "/v1/completions"
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Parts(NamedTuple):
    """What the application is made of, each built once."""

    fleet: Fleet
    source: ConfigurationSource
    director: Director
    evidence: Evidence
    outcomes: Outcomes
    store: OutcomeStore
    parity: Parity
    telemetry: Telemetry
    siblings: Siblings


def build_app(settings: GatewaySettings) -> HotPaths:
    """The ASGI application. Its lifespan follows the manifest; where that is a bad file, `ManifestError` ends the
    start."""
    parts = _build(settings)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with parts.source, parts.siblings, _sharing(parts.store, parts.outcomes):
            gc.collect()
            gc.freeze()  # what start-up built stays; collections need not walk it
            try:
                yield
            finally:
                gc.unfreeze()
                await parts.parity.aclose()
                await parts.fleet.aclose()
                await asyncio.to_thread(parts.telemetry.close)

    return _assemble(parts, lifespan, body_limit=settings.limits.max_body_bytes)


def _build(settings: GatewaySettings) -> Parts:
    limits = settings.limits
    fleet = Fleet(lambda key: connect(key, settings), clock=time.monotonic)
    source = _source(settings, fleet)
    admission = Admission(
        max_in_flight=limits.max_in_flight,
        max_queued=limits.max_queued,
        queue_timeout_s=limits.queue_timeout_s,
    )
    learner, evidence, store = Learner(), Evidence(), _store(settings, fleet)
    outcomes = Outcomes(learner=learner, evidence=evidence, store=store)
    parity = Parity(fleet=fleet, admission=admission)
    telemetry = Telemetry(settings.telemetry, in_flight=lambda: admission.in_flight, queued=lambda: admission.queued)
    telemetry.observe_configuration(source.status)
    telemetry.observe_parity(parity.counts)
    telemetry.observe_store(store.status)
    telemetry.observe_estimates(lambda: learner.fingerprints)
    telemetry.observe_evidence(lambda: [(pair, found) for pair in _pairs(fleet) for found in evidence.report(pair)])
    director = Director(
        fleet=fleet,
        classifier=_classifier(settings),
        admission=admission,
        observer=telemetry,
        deadlines=settings.deadlines,
        learner=learner,
        outcomes=outcomes,
        parity=parity,
    )
    siblings = Siblings(settings.metrics_folder, telemetry.exposition)
    return Parts(fleet, source, director, evidence, outcomes, store, parity, telemetry, siblings)


def _assemble(parts: Parts, lifespan: Callable[[Starlette], _Lifespan], *, body_limit: int) -> HotPaths:
    """The endpoints of `parts`, by path."""
    fleet, director, telemetry = parts.fleet, parts.director, parts.telemetry

    async def metrics(_: Request) -> Response:
        return Response(await parts.siblings.collect(), headers={"content-type": _METRICS_TYPE})

    models, health = ModelsEndpoint(fleet, started=int(time.time())), HealthEndpoint(fleet, parts.source)
    chat = GenerateEndpoint(director, parse_chat_request, telemetry, max_body_bytes=body_limit)
    completions = GenerateEndpoint(director, parse_completion_request, telemetry, max_body_bytes=body_limit)
    evidence = EvidenceEndpoint(fleet, parts.evidence, parts.parity.counts)
    route = RouteEndpoint(director, parse=parse_request, max_body_bytes=body_limit)
    app = Starlette(
        routes=[
            Route(_CHAT, chat, methods=["POST"]),
            Route(_COMPLETIONS, completions, methods=["POST"]),
            Route("/v1/models", models.list, methods=["GET"]),
            Route("/v1/models/{model:path}", models.get, methods=["GET"]),
            Route("/v1/route", route.post, methods=["POST"]),
            Route("/v1/evidence", evidence.get, methods=["GET"]),
            Route("/health/live", health.live, methods=["GET"]),
            Route("/health/ready", health.ready, methods=["GET"]),
            Route("/metrics", metrics, methods=["GET"]),
        ],
        exception_handlers={HTTPException: _http_error, Exception: _internal_error},
        lifespan=lifespan,
    )
    return HotPaths(app, {_CHAT: chat, _COMPLETIONS: completions})


def _source(settings: GatewaySettings, fleet: Fleet) -> ConfigurationSource:
    """Where the routing table comes from. The client of Kubernetes' API is loaded only where it is used."""
    if settings.cluster is not None:
        from slipstream_gateway.cluster.source import ClusterSource

        return ClusterSource(settings.cluster, fleet)
    if settings.manifest is None:
        raise CommandError("neither a manifest nor a cluster is given.")
    return FileSource(settings, settings.manifest, fleet)


def _classifier(settings: GatewaySettings) -> Classifier:
    return LinearClassifier(default_model() if settings.classifier is None else load_model(settings.classifier))


def _store(settings: GatewaySettings, fleet: Fleet) -> MemoryStore | RedisStore:
    """Where replicas tell each other what they saw. Redis' client is loaded only where it is used."""
    if settings.redis_url is None:
        return MemoryStore()
    from slipstream_gateway.stores.redis_store import RedisStore

    return RedisStore(settings.redis_url, pairs=lambda: _pairs(fleet))


def _pairs(fleet: Fleet) -> list[str]:
    """The pairs of the current manifest."""
    return [route.pair.metadata.key for route in fleet.current.table.routes.values()]


@contextlib.asynccontextmanager
async def _sharing(store: OutcomeStore, outcomes: Outcomes) -> AsyncIterator[None]:
    """What replicas saw goes back and forth for as long as the context lasts; at its end the rest is written."""
    task = asyncio.create_task(store.run(outcomes.apply))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.aclose()


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
