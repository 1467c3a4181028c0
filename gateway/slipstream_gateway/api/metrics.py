"""`GET /metrics`: Prometheus' text format, or OpenMetrics with exemplars on request."""

from __future__ import annotations

from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Collect(Protocol):
    """The metrics of all workers as one exposition."""

    async def __call__(self, *, openmetrics: bool) -> bytes: ...


class MetricsEndpoint:
    """The endpoint for scrapers. A Prometheus that stores exemplars requests OpenMetrics by itself."""

    def __init__(self, collect: Collect) -> None:
        self._collect = collect

    async def get(self, request: Request) -> Response:
        openmetrics = "application/openmetrics-text" in request.headers.get("accept", "")
        body = await self._collect(openmetrics=openmetrics)
        return Response(body, headers={"content-type": _OPENMETRICS if openmetrics else _TEXT})
