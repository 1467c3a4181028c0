"""Parity without the gateway around it: real servers, the manifest's own routing table, live replicas."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from slipstream_core.manifest import compile_table, parse
from slipstream_core.settings import Deadlines, GatewaySettings
from slipstream_core.types import Arm, Decision, Reason
from slipstream_gateway.admission import Admission
from slipstream_gateway.api.parse import parse_chat_request
from slipstream_gateway.app.app import connect
from slipstream_gateway.fleet.fleet import Fleet
from slipstream_gateway.fleet.snapshot import ServedRoute
from slipstream_gateway.lossless.parity import Parity
from slipstream_gateway.request.call import Call, Context
from slipstream_gateway.request.candidates import Attempt, Candidate
from slipstream_gateway.request.deadlines import CallTimer
from slipstream_gateway.request.query_of_death import QueriesOfDeath
from slipstream_gateway.upstreams.base import Job, Piece
from slipstream_gateway.upstreams.pool import Replica

from tests.support.polling import PATIENCE_S, soon


async def pieces_of(replica: Replica, job: Job) -> list[Piece]:
    """The pieces of the answer of `replica` to `job`."""
    if not job.request.stream:
        return [(await replica.upstream.complete(job)).body]
    stream, pieces = await replica.upstream.open(job), []
    while (piece := await stream.next()) is not None:
        pieces.append(piece)
    await stream.aclose()
    return pieces


class Bench:
    """A fleet for one manifest and a parity that looks for spare capacity often."""

    def __init__(self, text: str, *, local_endpoints: tuple[str, ...] = (), **options: Any) -> None:
        self._local_endpoints = local_endpoints
        settings = GatewaySettings(manifest=Path(), deadlines=Deadlines(connect_s=2.0))
        self.fleet = Fleet(lambda key: connect(key, settings), clock=time.monotonic)
        self.load(text)
        self.admission = Admission(max_in_flight=1, max_queued=1, queue_timeout_s=PATIENCE_S)
        self.deaths = QueriesOfDeath()
        self.parity = Parity(
            fleet=self.fleet,
            admission=self.admission,
            deaths=self.deaths,
            distrust=lambda *_: None,
            **{"look_s": 0.02, "reserved_after_s": math.inf, **options},
        )

    def load(self, text: str) -> None:
        self.fleet.swap(compile_table(parse(text), local_endpoints=self._local_endpoints))

    @property
    def served(self) -> ServedRoute:
        return next(iter(self.fleet.current.routes.values()))

    @property
    def plain(self) -> Replica:
        return self.served.plain.replicas[0]

    def job(self, body: dict[str, Any]) -> Job:
        request = parse_chat_request(json.dumps({"temperature": 0, **body}).encode())
        return Job(request=request, model="acme", draft_length=4, request_id="r-1")

    def decision(
        self,
        *,
        arm: Arm = Arm.SPECULATIVE,
        reason: Reason = Reason.SPECULATION_PAYS,
        request_class: str = "code/long",
    ) -> Decision:
        return Decision(
            arm=arm, reason=reason, request_class=request_class, draft_length=4, detail="of the test", numbers={}
        )

    async def ask(self, body: dict[str, Any], *, pieces: Sequence[Piece] | None = None, **options: Any) -> list[Piece]:
        """Runs `body` on the speculative arm, and ends its call; `pieces` in place of an answer."""
        job = self.job(body)
        pool = self.served.speculative
        assert pool is not None
        found = list(pieces if pieces is not None else await pieces_of(pool.replicas[0], job))
        self.end(found, job, **options)
        return found

    def end(
        self,
        pieces: Sequence[Piece],
        job: Job,
        *,
        arm: Arm = Arm.SPECULATIVE,
        reason: Reason = Reason.SPECULATION_PAYS,
        request_class: str = "code/long",
        draw: float = 0.0,
        status: str = "ok",
        runs: int = 0,
        observation: Any = None,
    ) -> bool:
        """Ends a call that was answered by `pieces`; `observation` is what records it. Returns whether it was drawn for
        a comparison."""
        served = self.served
        assert served.speculative is not None
        assert served.route.speculative is not None
        call = Call(job.request, Context("r-1", authorization="Bearer client"), CallTimer(total_s=1.0, deadline_s=None))
        call.decision = self.decision(arm=arm, reason=reason, request_class=request_class)
        call.pair, call.observation = served.route.key, observation
        call.draws = msgspec.structs.replace(call.draws, parity=draw)
        server = Candidate(served.speculative.replicas[0], served, served.route.speculative, call.decision)
        call.attempt, call.status, call.runs = Attempt(server), status, runs
        call.attempt.release()
        drawn = self.parity.samples.draw(call, served)
        call.timer.close()
        if drawn is None:
            return False
        call.draw(drawn)
        assert call.copy is not None
        for piece in pieces:
            call.copy.add(piece)
        drawn.ended(call)
        return True

    def total(self) -> dict[str, int]:
        """All counts together, by name."""
        total: dict[str, int] = {}
        for count in self.parity.counts():
            for name, value in {"checked": count.checked, "mismatched": count.mismatched, **count.dropped}.items():
                total[name] = total.get(name, 0) + value
        return {name: value for name, value in total.items() if value}

    async def until(self, holds: Callable[[], bool]) -> None:
        await soon(holds)

    async def counted(self, expected: dict[str, int]) -> None:
        """Waits for as many answers as `expected` has, and compares."""
        ended = sum(value for name, value in expected.items() if name != "mismatched")
        await self.until(lambda: sum(v for name, v in self.total().items() if name != "mismatched") >= ended)
        assert self.total() == expected
