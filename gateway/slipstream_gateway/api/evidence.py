"""`GET /v1/evidence`: what speculation brings in live traffic, per pair and request class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from slipstream_gateway.api.http import json_response
from slipstream_gateway.director.fleet import Fleet
from slipstream_gateway.director.parity import ParityCount


class Report(Protocol):
    """Where the comparison of the arms is kept."""

    def report(self, pair: str) -> Sequence[msgspec.Struct]: ...


class EvidenceEndpoint:
    """Treatment against control as this worker knows it: from its own requests, and from those of all replicas where
    they share what they saw; and what this worker's own replays found (`parity`)."""

    def __init__(self, fleet: Fleet, evidence: Report, parity: Callable[[], Sequence[ParityCount]]) -> None:
        self._fleet = fleet
        self._evidence = evidence
        self._parity = parity

    async def get(self, request: Request) -> Response:
        parity = self._parity()
        data = [
            {
                "pair": name,
                "model": model,
                "classes": self._evidence.report(name),
                "parity": [count for count in parity if count.pair == name],
            }
            for model, served in self._fleet.current.routes.items()
            for name in (served.route.pair.metadata.key,)
        ]
        return json_response({"object": "slipstream.evidence", "data": data})
