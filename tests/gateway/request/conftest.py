"""Parity without the gateway around it: real servers, the manifest's own routing table, live replicas."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from slipstream_core.manifest import compile_table, parse
from slipstream_core.settings import Deadlines, GatewaySettings
from slipstream_core.types import Arm, Decision, Reason
from slipstream_gateway.admission import Admission
from slipstream_gateway.api.parse import parse_chat_request
from slipstream_gateway.app.app import connect
from slipstream_gateway.fleet.fleet import Fleet
from slipstream_gateway.fleet.snapshot import ServedRoute
from slipstream_gateway.request.parity.drawn import drawn
from slipstream_gateway.request.parity.scheduler import Parity
from slipstream_gateway.upstreams.base import Completion, Job, Piece
from slipstream_gateway.upstreams.pool import Replica

from tests.support.polling import PATIENCE_S, soon


class Bench:
    """A fleet for one manifest and a parity that looks for spare capacity often."""

    def __init__(self, text: str, *, local_endpoints: tuple[str, ...] = (), **options: Any) -> None:
        self._local_endpoints = local_endpoints
        settings = GatewaySettings(manifest=Path(), deadlines=Deadlines(connect_s=2.0))
        self.fleet = Fleet(lambda key: connect(key, settings), clock=time.monotonic)
        self.load(text)
        self.admission = Admission(max_in_flight=1, max_queued=1, queue_timeout_s=PATIENCE_S)
        self.parity = Parity(fleet=self.fleet, admission=self.admission, **{"look_s": 0.02, **options})

    def load(self, text: str) -> None:
        self.fleet.swap(compile_table(parse(text), local_endpoints=self._local_endpoints))

    @property
    def served(self) -> ServedRoute:
        return next(iter(self.fleet.current.routes.values()))

    @property
    def plain(self) -> Replica:
        return self.served.plain.replicas[0]

    def job(self, body: dict[str, Any]) -> Job:
        return Job(
            request=parse_chat_request(json.dumps({"temperature": 0, **body}).encode()),
            model="acme",
            draft_length=4,
            request_id="r-1",
            headers=(("authorization", "Bearer client"), ("traceparent", "00-1-2-01")),
        )

    async def ask(self, body: dict[str, Any], *, watched: Any = None, **options: Any) -> list[Piece]:
        """Runs `body` on the speculative arm under parity's eyes; what its reader got."""
        job = self.job(body)
        pool = self.served.speculative
        assert pool is not None
        upstream = pool.replicas[0].upstream
        if watched is None:
            watched = await (upstream.open(job) if job.request.stream else upstream.complete(job))
        answer = self.watch(watched, job, **options)
        if isinstance(answer, Completion):
            return list(answer.pieces)
        pieces = []
        while (piece := await answer.next()) is not None:
            pieces.append(piece)
        await answer.aclose()
        return pieces

    def watch(
        self,
        answer: Any,
        job: Job,
        *,
        arm: Arm = Arm.SPECULATIVE,
        reason: Reason = Reason.SPECULATION_PAYS,
        draw: float = 0.0,
    ) -> Any:
        decision = Decision(
            arm=arm, reason=reason, request_class="code/long", draft_length=4, detail="of the test", numbers={}
        )
        candidate = drawn(self.served, self.served, decision=decision, job=job, draw=draw)
        if candidate is None:
            return answer
        if isinstance(answer, Completion):
            self.parity.take(candidate, answer)
            return answer
        return self.parity.watch(candidate, answer)

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


@pytest.fixture
async def bench() -> AsyncIterator[Callable[..., Bench]]:
    """Makes benches; all are closed after the test."""
    made: list[Bench] = []

    def make(text: str, **options: Any) -> Bench:
        made.append(Bench(text, **options))
        return made[-1]

    yield make
    for one in made:
        await one.parity.aclose()
        await one.fleet.aclose()


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What the gateway logged so far; gRPC's own loggers have things to say of a busy machine."""
    caplog.set_level(logging.INFO, "slipstream_gateway")

    def messages() -> list[str]:
        ours = [record for record in caplog.records if record.name.startswith("slipstream_gateway")]
        return [f"{record.levelname} {record.getMessage()}" for record in ours]

    return messages
