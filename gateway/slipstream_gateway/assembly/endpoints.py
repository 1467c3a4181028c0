"""The endpoints by side: what a client of models may call, and what an admin may."""

from __future__ import annotations

import time
from collections.abc import Sequence

from starlette.routing import BaseRoute, Route, request_response

from slipstream_gateway.api.evidence import EvidenceEndpoint
from slipstream_gateway.api.gatekeeper import admin_check, own_host
from slipstream_gateway.api.generate import GenerateEndpoint
from slipstream_gateway.api.health import LIVE, READY, HealthEndpoint
from slipstream_gateway.api.metrics import MetricsEndpoint
from slipstream_gateway.api.models import ModelsEndpoint
from slipstream_gateway.api.parse import parse_chat_request, parse_completion_request, parse_request
from slipstream_gateway.api.responses import parse_responses_request
from slipstream_gateway.api.route import RouteEndpoint
from slipstream_gateway.api.sides import AdminCheck, AdminOnly, HotPaths, Respond, Sides, anybody, application
from slipstream_gateway.api.stored import stored_response
from slipstream_gateway.assembly.console import console_routes
from slipstream_gateway.assembly.parts import Parts
from slipstream_gateway.hosts import is_loopback
from slipstream_gateway.settings import GatewaySettings

_CHAT = "/v1/chat/completions"
_COMPLETIONS = "/v1/completions"
_RESPONSES = "/v1/responses"


def build_sides(parts: Parts, settings: GatewaySettings) -> Sides:
    """Everything that answers: on one port, or admin paths on a port of their own."""
    hot = _generation(parts, settings)
    public = [*_posts(hot), *_models(parts), *_health(parts)]
    host = _host_check(parts, settings)
    admin = _admin(parts, settings, host=host)
    if settings.admin.port is None:
        route = _route(parts, settings, internals=True)
        return Sides(HotPaths(application([*public, route, *admin]), hot))
    on_public = application([*public, _route(parts, settings, internals=False)])
    on_admin = application([_route(parts, settings, internals=True, host=host), *_health(parts), *admin])
    return Sides(HotPaths(on_public, hot), admin=on_admin, admin_port=settings.admin.port)


def _host_check(parts: Parts, settings: GatewaySettings) -> AdminCheck:
    """Without keys, what keeps others from the admin paths is that the loopback is this machine's alone: then names
    that were made to point here are refused. A key is what no such page has; and a listener for other machines, such as
    a pod's, has names that nobody here knows."""
    listening = settings.host if settings.admin.port is None else settings.admin.host
    return own_host(listening) if parts.gate.is_open and is_loopback(listening) else anybody


def _generation(parts: Parts, settings: GatewaySettings) -> dict[str, GenerateEndpoint]:
    limit, forwarded = settings.limits.max_body_bytes, settings.upstreams.forwarded_headers
    return {
        path: GenerateEndpoint(
            parts.director, parse, parts.observer, max_body_bytes=limit, gate=parts.gate, forwarded=forwarded
        )
        for path, parse in (
            (_CHAT, parse_chat_request),
            (_COMPLETIONS, parse_completion_request),
            (_RESPONSES, parse_responses_request),
        )
    }


def _posts(hot: dict[str, GenerateEndpoint]) -> list[BaseRoute]:
    """The same endpoints for the router, which says what else their paths do not take."""
    posts = [Route(path, endpoint, methods=["POST"]) for path, endpoint in hot.items()]
    return [*posts, Route(_RESPONSES + "/{response:path}", stored_response, methods=["GET", "POST", "DELETE"])]


def _models(parts: Parts) -> list[BaseRoute]:
    models = ModelsEndpoint(parts.fleet, started=int(time.time()), gate=parts.gate)
    return [
        Route("/v1/models", models.list, methods=["GET"]),
        Route("/v1/models/{model:path}", models.get, methods=["GET"]),
    ]


def _health(parts: Parts) -> list[BaseRoute]:
    health = HealthEndpoint(parts.fleet, parts.source)
    return [
        Route(LIVE, health.live, methods=["GET"]),
        Route(READY, health.ready, methods=["GET"]),
    ]


def _route(parts: Parts, settings: GatewaySettings, *, internals: bool, host: AdminCheck = anybody) -> Route:
    limit = settings.limits.max_body_bytes
    route = RouteEndpoint(
        parts.director, parse=parse_request, max_body_bytes=limit, internals=internals, gate=parts.gate
    )
    return Route("/v1/route", AdminOnly(request_response(route.post), host), methods=["POST"])


def _admin(parts: Parts, settings: GatewaySettings, *, host: AdminCheck) -> Sequence[BaseRoute]:
    """What only admins may call. The check stands at each endpoint, not at paths: however one is spelled, it is asked.
    Who has an endpoint for admins adds a line here."""
    check = admin_check(parts.gate, host)
    metrics_check = host if settings.admin.open_metrics else check
    evidence = EvidenceEndpoint(parts.fleet, parts.evidence, parts.parity.counts, parts.conformance.replicas)

    def guarded(path: str, respond: Respond, *methods: str, check: AdminCheck = check) -> Route:
        return Route(path, AdminOnly(request_response(respond), check), methods=list(methods or ("GET",)))

    return [
        guarded("/v1/evidence", evidence.get),
        guarded("/metrics", MetricsEndpoint(parts.siblings.metrics).get, check=metrics_check),
        *console_routes(parts, settings, host=host, check=check),
    ]
