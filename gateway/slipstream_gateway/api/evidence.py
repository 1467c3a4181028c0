"""`GET /v1/evidence`: the effect of speculation in live traffic, per pair and request class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from slipstream_gateway.api.http import json_response
from slipstream_gateway.fleet.fleet import Fleet
from slipstream_gateway.fleet.snapshot import ServedRoute
from slipstream_gateway.lossless.conformance import ReplicaConformance
from slipstream_gateway.lossless.parity import ParityCount


class Report(Protocol):
    """The store of comparisons between the arms."""

    def report(self, pair: str) -> Sequence[msgspec.Struct]: ...


class EvidenceEndpoint:
    """Treatment against control as known to this gateway: from its own requests, and from those of all replicas if they
    share outcomes; also the results of this gateway's replays (`parity`) and of its engine checks (`conformance`), and
    what each engine with several drafts knows of them by class (`drafts`)."""

    def __init__(
        self,
        fleet: Fleet,
        evidence: Report,
        parity: Callable[[], Sequence[ParityCount]],
        conformance: Callable[[], Sequence[ReplicaConformance]],
    ) -> None:
        self._fleet = fleet
        self._evidence = evidence
        self._parity = parity
        self._conformance = conformance

    async def get(self, request: Request) -> Response:
        parity, conformance = self._parity(), self._conformance()
        data = [
            {
                "pair": name,
                "model": model,
                "classes": self._evidence.report(name),
                "parity": [count for count in parity if count.pair == name],
                "conformance": [replica for replica in conformance if replica.pair == name],
                "drafts": list(_drafts(served)),
            }
            for model, served in self._fleet.current.routes.items()
            for name in (served.route.key,)
        ]
        return json_response({"object": "slipstream.evidence", "data": data})


def _drafts(served: ServedRoute) -> Iterator[dict[str, Any]]:
    """What the engine of each server knows of its drafts."""
    pools = (served.speculative, served.plain)
    for replica in dict.fromkeys(replica for pool in pools if pool is not None for replica in pool.replicas):
        for one in replica.upstream.draft_standings:
            yield {
                "server": replica.name,
                "class": one.group,
                "draft": one.draft,
                "state": one.state,
                "answers": one.answers,
                "seconds_per_token": one.seconds_per_token,
            }
