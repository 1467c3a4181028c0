"""The endpoints for monitoring.

`GET /health/live`: the process runs. `GET /health/ready`: it can serve, and its source of configuration.
`GET /metrics`: Prometheus' text format, or OpenMetrics with exemplars on request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from slipstream_core.errors import SlipstreamError
from starlette.requests import Request
from starlette.responses import Response

from slipstream_gateway.api.http import json_response
from slipstream_gateway.fleet.fleet import ConfigurationSource, ConfigurationStatus, Fleet
from slipstream_gateway.upstreams.pool import Pool

LIVE, READY = "/health/live", "/health/ready"
PROBE_TIMEOUT_S = 2.0
KEEP_S = 1.0


class HealthEndpoint:
    """With a manifest file, ready means that the plain arm of every pair has a responding server: without a draft all
    requests still work. The result of a probe is cached for a second.

    In a cluster a gateway is ready once it has started: a pair without servers must not disable the gateway for other
    pairs, nor must an unreachable API server.
    """

    def __init__(self, fleet: Fleet, source: ConfigurationSource) -> None:
        self._fleet = fleet
        self._source = source
        self._lock = asyncio.Lock()
        self._checked_s = -KEEP_S
        self._problems: dict[str, str] = {}

    async def live(self, request: Request) -> Response:
        return json_response({"status": "live"})

    async def ready(self, request: Request) -> Response:
        status = self._source.status()
        if status.origin == "file":
            async with self._lock:
                if time.monotonic() - self._checked_s >= KEEP_S:
                    self._problems = await self._check()
                    self._checked_s = time.monotonic()
            problems = self._problems
        else:
            problems = dict.fromkeys(status.without_servers, "no server is ready")
        is_ready = status.origin != "file" or not problems
        body = {"status": "ready" if is_ready else "not_ready", **_shown(status)}
        if problems:
            body["models"] = problems
        return json_response(body) if is_ready else json_response(body, status=503, headers={"retry-after": "1"})

    async def _check(self) -> dict[str, str]:
        """The problems by model; empty if all is well. Addresses are not disclosed."""
        routes = self._fleet.current.routes
        results = await asyncio.gather(*(_any_answers(served.plain) for served in routes.values()))
        return {name: "no server responds" for name, answers in zip(routes, results, strict=True) if not answers}


async def _any_answers(pool: Pool) -> bool:
    """Whether one of the first few replicas responds to a probe."""
    for replica in pool.replicas[:8]:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                await replica.upstream.probe()
        except (SlipstreamError, TimeoutError):
            continue
        return True
    return False


def _shown(status: ConfigurationStatus) -> dict[str, object]:
    """The public facts on the source of the routing table; addresses are not disclosed."""
    return {
        "configuration": status.origin,
        "generation": status.generation,
        "connected": status.connected,
        "age_s": round(status.age_s, 1),
    }


_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class MetricsEndpoint:
    """The endpoint for scrapers. A Prometheus that stores exemplars requests OpenMetrics by itself. `text` and
    `openmetrics` return the metrics in either format."""

    def __init__(self, *, text: Callable[[], bytes], openmetrics: Callable[[], bytes]) -> None:
        self._text = text
        self._openmetrics = openmetrics

    async def get(self, request: Request) -> Response:
        if "application/openmetrics-text" in request.headers.get("accept", ""):
            return Response(self._openmetrics(), headers={"content-type": _OPENMETRICS})
        return Response(self._text(), headers={"content-type": _TEXT})
