"""`GET /health/live`: the process runs. `GET /health/ready`: it can serve every model."""

from __future__ import annotations

import asyncio
import time

from starlette.requests import Request
from starlette.responses import Response

from slipstream_gateway.api.http import json_response
from slipstream_gateway.director.fleet import Fleet
from slipstream_gateway.errors import SlipstreamError
from slipstream_gateway.upstreams.pool import Pool

PROBE_TIMEOUT_S = 2.0
KEEP_S = 1.0


class HealthEndpoint:
    """Ready means that the plain arm of every pair has a server that answers: without a draft everything still
    works. The answer of a probe is kept for a second, however many ask."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._lock = asyncio.Lock()
        self._checked_s = -KEEP_S
        self._problems: dict[str, str] = {}

    async def live(self, request: Request) -> Response:
        return json_response({"status": "live"})

    async def ready(self, request: Request) -> Response:
        async with self._lock:
            if time.monotonic() - self._checked_s >= KEEP_S:
                self._problems = await self._check()
                self._checked_s = time.monotonic()
        if self._problems:
            body = {"status": "not_ready", "models": self._problems}
            return json_response(body, status=503, headers={"retry-after": "1"})
        return json_response({"status": "ready"})

    async def _check(self) -> dict[str, str]:
        """What is wrong, by model; empty where all is well. Addresses stay inside."""
        routes = self._fleet.current.routes
        results = await asyncio.gather(*(_any_answers(served.plain) for served in routes.values()))
        return {name: "no server answers" for name, answers in zip(routes, results, strict=True) if not answers}


async def _any_answers(pool: Pool) -> bool:
    """Whether one of the first few replicas answers a probe."""
    for replica in pool.replicas[:8]:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                await replica.upstream.probe()
        except (SlipstreamError, TimeoutError):
            continue
        return True
    return False
