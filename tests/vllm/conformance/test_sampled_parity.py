"""Parity of sampled answers over real vLLM servers: garbage raises the alarm at once, what is right never does."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from slipstream_core.manifest import compile_table, parse
from slipstream_core.settings import Deadlines, GatewaySettings
from slipstream_core.types import Arm, Capability, Decision, GenerationRequest, Reason
from slipstream_engine.embedded.workload import workload
from slipstream_gateway.admission import Admission
from slipstream_gateway.api.parse import parse_chat_request
from slipstream_gateway.app.app import connect
from slipstream_gateway.fleet.fleet import Fleet
from slipstream_gateway.lossless.parity import Parity
from slipstream_gateway.lossless.score import ALARM_AT
from slipstream_gateway.request.call import Call, Context
from slipstream_gateway.request.candidates import Attempt, Candidate
from slipstream_gateway.request.deadlines import CallTimer
from slipstream_gateway.request.query_of_death import QueriesOfDeath
from slipstream_gateway.upstreams.base import Job
from slipstream_tools.up.vllm_server import VllmServer

from tests.gateway.lossless.parity_bench import pieces_of
from tests.support.manifests import arm, external, pair_yaml
from tests.support.polling import soon

# A server checks and answers for minutes beside other tests. tests/gateway/lossless has scripted servers.
pytestmark = pytest.mark.slow

WAIT_S = 240.0
MODEL = "slipstream-embedded"
DECISION = Decision(
    arm=Arm.SPECULATIVE,
    reason=Reason.SPECULATION_PAYS,
    request_class="summarization/long",
    draft_length=4,
    detail="of the test",
    numbers={},
)


class Traffic:
    """Speculative answers under parity's eyes, as the gateway has them watched. `distrusted` is what an alarm took."""

    def __init__(self, plain: str, speculative: str) -> None:
        settings = GatewaySettings(manifest=Path(), deadlines=Deadlines(connect_s=5.0))
        self.fleet = Fleet(lambda key: connect(key, settings), clock=time.monotonic)
        engine = external(arm(plain, model=MODEL), arm(speculative, model=MODEL))
        self.fleet.swap(compile_table(parse(pair_yaml(engine, "maxDraftTokens: 4", policy=", parityShare: 1"))))
        self.distrusted: list[tuple[str, Capability, str]] = []
        self.parity = Parity(
            fleet=self.fleet,
            admission=Admission(max_in_flight=9, max_queued=9, queue_timeout_s=WAIT_S),
            deaths=QueriesOfDeath(),
            look_s=0.02,
            distrust=lambda *what: self.distrusted.append(what),
        )
        self.served = self.fleet.current.routes["acme"]
        assert self.served.speculative is not None
        [self.replica] = self.served.speculative.replicas
        self.replica.gives_token_ids = True

    async def ask(self, request: GenerationRequest) -> bytes:
        """What the client of one request gets; returns when the answer was compared."""
        call = Call(request, Context("r"), CallTimer(total_s=WAIT_S, deadline_s=None))
        call.decision, call.draws = DECISION, msgspec.structs.replace(call.draws, parity=0.0)
        assert self.served.route.speculative is not None
        call.attempt = Attempt(Candidate(self.replica, self.served, self.served.route.speculative, DECISION))
        drawn = self.parity.samples.draw(call, self.served)
        assert drawn is not None
        call.draw(drawn)
        wants = drawn.wants_token_ids(call, call.attempt)
        job = Job(request=request, model=MODEL, draft_length=4, request_id="r", token_ids=wants)
        data = b""
        for piece in await pieces_of(self.replica, job):
            data += piece.data
            call.copy.add(piece)  # type: ignore[union-attr]
        call.status = "ok"
        call.timer.close()
        call.attempt.release()
        drawn.ended(call)
        await self._compared()
        return data

    async def _compared(self) -> None:
        before = self.answers
        await soon(lambda: self.answers != before or self._dropped(), "another answer", within_s=WAIT_S)
        assert not self._dropped()

    @property
    def answers(self) -> int:
        return sum(count.checked for count in self.parity.counts())

    @property
    def mismatched(self) -> int:
        return sum(count.mismatched for count in self.parity.counts())

    def _dropped(self) -> dict[str, int]:
        return {cause: n for count in self.parity.counts() for cause, n in count.dropped.items()}


@pytest.fixture
async def traffic(async_exit_stack: AsyncExitStack) -> Callable[[VllmServer, VllmServer], Traffic]:
    def make(plain: VllmServer, speculative: VllmServer) -> Traffic:
        made = Traffic(plain.url, speculative.url)
        async_exit_stack.push_async_callback(made.fleet.aclose)
        async_exit_stack.push_async_callback(made.parity.aclose)
        return made

    return make


def _requests(count: int, **more: Any) -> list[GenerationRequest]:
    """Summaries, and their settings in turn."""
    found = []
    for index, asked in enumerate(workload(7, count, {"summary": 1.0})):
        settings = ({"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9}, {"temperature": 1.2, "top_k": 50})[
            index % 3
        ]
        body = {"model": "acme", "messages": asked.messages, "max_tokens": 48, "seed": index, **settings, **more}
        found.append(parse_chat_request(json.dumps(body).encode()))
    return found


async def test_garbage_in_traffic_raises_the_alarm_within_five_answers(
    traffic: Callable[[VllmServer, VllmServer], Traffic], plain_vllm_server: VllmServer, garbage_server: VllmServer
) -> None:
    running = traffic(plain_vllm_server, garbage_server)
    for request in _requests(5):
        await running.ask(request)
        if running.distrusted:
            break
    [(pair, capability, detail)] = running.distrusted
    assert (pair, capability) == ("pair", Capability.SAMPLED_SPECULATION)
    assert "less likely under the target" in detail
    assert running.answers <= 5
    assert running.mismatched >= 1
    [count] = running.parity.counts()
    assert count.evidence is not None
    assert count.evidence >= ALARM_AT


async def test_right_answers_raise_no_alarm_and_keep_their_bytes(
    traffic: Callable[[VllmServer, VllmServer], Traffic], plain_vllm_server: VllmServer
) -> None:
    """Streams and whole answers, with requests of several settings. The bytes are those without ids but for what is
    new in each answer: its id and its time."""
    running = traffic(plain_vllm_server, plain_vllm_server)
    for request in (*_requests(3), *_requests(3, stream=True)):
        data = await running.ask(request)
        assert b'"token_ids":null' in data
        assert b'token_ids":[' not in data
    assert running.answers == 6
    assert running.mismatched == 0
    assert running.distrusted == []
