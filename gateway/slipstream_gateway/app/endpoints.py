"""The endpoints by side: public ones for clients of models, and admin ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from slipstream_core.hosts import is_loopback
from slipstream_core.settings import GatewaySettings
from slipstream_core.types import GenerationRequest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, request_response

from slipstream_gateway.api.access_control import admin_check, own_site
from slipstream_gateway.api.errors import http_error_body
from slipstream_gateway.api.evidence import EvidenceEndpoint
from slipstream_gateway.api.generate import GenerateEndpoint
from slipstream_gateway.api.models import ModelsEndpoint
from slipstream_gateway.api.monitoring import LIVE, READY, HealthEndpoint, MetricsEndpoint
from slipstream_gateway.api.parse import parse_chat_request, parse_completion_request, parse_request
from slipstream_gateway.api.parse_responses import parse_responses_request
from slipstream_gateway.api.port_router import (
    Checked,
    FastPaths,
    PortRouter,
    RequestCheck,
    Respond,
    allow_all,
    application,
)
from slipstream_gateway.api.request import BodyParser
from slipstream_gateway.api.route import RouteEndpoint
from slipstream_gateway.api.turns import Turns
from slipstream_gateway.app.console import console_routes
from slipstream_gateway.app.wiring import Services

_CHAT = "/v1/chat/completions"
_COMPLETIONS = "/v1/completions"
_RESPONSES = "/v1/responses"
_PROBES = (LIVE, READY)


def build_port_router(services: Services, settings: GatewaySettings) -> PortRouter:
    """All endpoints on one port, or the admin paths on a port of their own."""
    # More threads would share the same CPU time.
    turns = Turns(ThreadPoolExecutor(max_workers=1, thread_name_prefix="parse"))
    hot = generation(services, settings, turns)
    has_console = settings.admin.port is None
    public = [_home(has_console=has_console), *_posts(hot), *_models(services), *_health(services)]
    site = _site_check(services, settings.host)
    if has_console:
        routes = [*public, _route(services, settings, turns, internals=True), *_admin(services, settings, site=site)]
        return PortRouter(FastPaths(application(routes), hot, check=site, unchecked=_PROBES))
    on_public = application([*public, _route(services, settings, turns, internals=False)])
    admin_site = _site_check(services, settings.admin.host)
    admin = _admin(services, settings, site=admin_site)
    route = _route(services, settings, turns, internals=True, site=admin_site)
    on_admin = application([_home(has_console=True, site=admin_site), route, *_health(services), *admin])
    public_side = FastPaths(on_public, hot, check=site, unchecked=_PROBES)
    return PortRouter(public_side, admin=on_admin, admin_port=settings.admin.port)


def _site_check(services: Services, listening: str) -> RequestCheck:
    """The check of `Host` and `Origin` for a gateway without keys that listens on the loopback address: without it,
    another site could make a browser on this machine send requests. With keys no check is needed, because pages of
    other sites have no key. For other listeners, such as a pod's, the gateway does not know their names."""
    return own_site(listening) if services.access.is_open and is_loopback(listening) else allow_all


def generation(services: Services, settings: GatewaySettings, turns: Turns) -> dict[str, GenerateEndpoint]:
    """The generation endpoints by path."""
    forwarded = settings.upstreams.forwarded_headers
    return {
        path: GenerateEndpoint(
            services.dispatcher,
            _parser(parse, services, turns),
            services.recorders,
            max_body_bytes=settings.limits.max_body_bytes,
            access=services.access,
            forwarded=forwarded,
        )
        for path, parse in (
            (_CHAT, parse_chat_request),
            (_COMPLETIONS, parse_completion_request),
            (_RESPONSES, parse_responses_request),
        )
    }


def _parser(parse: Callable[..., GenerationRequest], services: Services, turns: Turns) -> BodyParser:
    """Only keys restrict parameters."""
    return BodyParser(partial(parse, find_restricted=not services.access.is_open), turns)


def _posts(hot: dict[str, GenerateEndpoint]) -> list[BaseRoute]:
    """The same endpoints as routes of the router, which refuses other methods on their paths."""
    posts = [Route(path, endpoint, methods=["POST"]) for path, endpoint in hot.items()]
    return [*posts, Route(_RESPONSES + "/{response:path}", _stored_response, methods=["GET", "POST", "DELETE"])]


async def _stored_response(request: Request) -> Response:
    """404 for all operations on a stored response. The gateway stores nothing of a response, and the id does not
    identify the server that might."""
    what = f"{request.method} {_RESPONSES}/{{id}} is not supported"
    message = f"The gateway stores no responses, so {what}. Use POST {_RESPONSES}."
    return Response(http_error_body(404, message), 404, media_type="application/json")


def _home(*, has_console: bool, site: RequestCheck = allow_all) -> Route:
    """The root path: leads browsers to the console, and says to other clients what is where."""
    where = "at /console" if has_console else "at /console of the admin port (--admin-port)"
    message = f"There is nothing at /. The API begins with /v1, and the console is {where}."

    async def home(request: Request) -> Response:
        if has_console and "text/html" in request.headers.get("accept", ""):
            return Response(status_code=307, headers={"location": "console", "cache-control": "no-store"})
        return Response(http_error_body(404, message), 404, media_type="application/json")

    return Route("/", Checked(request_response(home), site), methods=["GET"])


def _models(services: Services) -> list[BaseRoute]:
    models = ModelsEndpoint(services.fleet, started=int(time.time()), access=services.access)
    return [
        Route("/v1/models", models.list, methods=["GET"]),
        Route("/v1/models/{model:path}", models.get, methods=["GET"]),
    ]


def _health(services: Services) -> list[BaseRoute]:
    health = HealthEndpoint(services.fleet, services.source)
    return [
        Route(LIVE, health.live, methods=["GET"]),
        Route(READY, health.ready, methods=["GET"]),
    ]


def _route(
    services: Services, settings: GatewaySettings, turns: Turns, *, internals: bool, site: RequestCheck = allow_all
) -> Route:
    route = RouteEndpoint(
        services.dispatcher,
        parse=_parser(parse_request, services, turns),
        max_body_bytes=settings.limits.max_body_bytes,
        internals=internals,
        access=services.access,
    )
    return Route("/v1/route", Checked(request_response(route.post), site), methods=["POST"])


def _admin(services: Services, settings: GatewaySettings, *, site: RequestCheck) -> Sequence[BaseRoute]:
    """The admin endpoints; a new one is a line here. The check is part of each endpoint and independent of paths, so
    that no spelling of a path avoids it."""
    check = admin_check(services.access, site)
    metrics_check = site if settings.admin.open_metrics else check
    metrics = MetricsEndpoint(text=services.telemetry.exposition, openmetrics=services.telemetry.openmetrics)
    evidence = EvidenceEndpoint(
        services.fleet, services.evidence, services.parity.counts, services.conformance.replicas
    )

    def guarded(path: str, respond: Respond, *methods: str, check: RequestCheck = check) -> Route:
        return Route(path, Checked(request_response(respond), check), methods=list(methods or ("GET",)))

    return [
        guarded("/v1/evidence", evidence.get),
        guarded("/metrics", metrics.get, check=metrics_check),
        *console_routes(services, settings, site=site, check=check),
    ]
