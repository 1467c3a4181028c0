"""What the operator hears of the speculative arm beside finished answers: attempts that failed, and comparisons."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from slipstream_core.errors import SlipstreamError
from slipstream_core.manifest import compile_table, parse
from slipstream_core.observation import Observation
from slipstream_core.redis.outcome_stream import decode, encode
from slipstream_core.settings import Deadlines, GatewaySettings
from slipstream_core.types import Arm, Mode, Reason
from slipstream_gateway.admission import Admission
from slipstream_gateway.api.parse import parse_chat_request
from slipstream_gateway.app.app import connect
from slipstream_gateway.decide.classify import LinearClassifier, default_model
from slipstream_gateway.decide.estimate import ArmComparisons, Learner
from slipstream_gateway.fleet.fleet import Fleet
from slipstream_gateway.lossless.parity import Parity
from slipstream_gateway.request.answers import Answers
from slipstream_gateway.request.call import Call, Context
from slipstream_gateway.request.cold_start import ColdStarts
from slipstream_gateway.request.decider import Decider
from slipstream_gateway.request.dispatch import Dispatcher
from slipstream_gateway.request.observations import MemoryStore, Outcomes
from slipstream_gateway.request.query_of_death import QueriesOfDeath
from slipstream_gateway.request.retry_budget import RetryBudget
from slipstream_gateway.request.search import Resumptions
from slipstream_gateway.telemetry.providers import Telemetry
from slipstream_gateway.upstreams.base import Piece

from tests.gateway.learning.samples import forecast_for, observe
from tests.gateway.pair_manifest import chat, manifest_text
from tests.support.draws import by_turns, chosen_draws
from tests.support.polling import soon
from tests.support.ports import dead_url

Make = Callable[..., Any]


class KeptStore(MemoryStore):
    """Keeps what replicas would be told."""

    def __init__(self) -> None:
        self.told: list[Observation] = []

    def append(self, observation: Observation) -> None:
        self.told.append(observation)


class NoClient:
    """Discards its answer."""

    async def send(self, call: Call, piece: Piece) -> None: ...

    async def end(self, call: Call) -> None: ...


class Desk:
    """A dispatcher of real parts for one manifest, and the observations of its requests."""

    def __init__(self, text: str) -> None:
        settings = GatewaySettings(manifest=Path(), deadlines=Deadlines(connect_s=10.0))
        self.fleet = Fleet(lambda key: connect(key, settings), clock=time.monotonic)
        self.fleet.swap(compile_table(parse(text)))
        admission = Admission(max_in_flight=4, max_queued=4, queue_timeout_s=5.0)
        self.learner, self.evidence, self.store = Learner(), ArmComparisons(), KeptStore()
        deaths = QueriesOfDeath()
        self.parity = Parity(
            fleet=self.fleet, admission=admission, deaths=deaths, distrust=lambda *_: None, look_s=0.02
        )
        self.telemetry = Telemetry(settings.telemetry, in_flight=lambda: 0, queued=lambda: 0)
        retries, deadlines, recorders = RetryBudget(), settings.deadlines, [self.telemetry.recorder]
        resumptions = Resumptions(fleet=self.fleet, retries=retries, deadlines=deadlines)
        self.dispatcher = Dispatcher(
            fleet=self.fleet,
            cold_starts=ColdStarts(self.fleet, max_held=0),
            admission=admission,
            decider=Decider(classifier=LinearClassifier(default_model()), learner=self.learner),
            answers=Answers(resumptions=resumptions, deadlines=deadlines, recorders=recorders, deaths=deaths),
            retries=retries,
            deadlines=deadlines,
            outcomes=Outcomes(learner=self.learner, evidence=self.evidence, store=self.store),
            tracer=self.telemetry.tracer,
            recorders=recorders,
            deaths=deaths,
            before=[self.parity.samples.draw],
            draw=by_turns(chosen_draws()),
        )

    async def ask(self, body: dict[str, Any], *, mode: Mode = Mode.SPECULATIVE, learn: bool = True) -> str:
        """The reason of the answer to `body`, or the name of the error that it ended with."""
        request = parse_chat_request(json.dumps({"temperature": 0, **body}).encode())
        request = msgspec.structs.replace(request, mode=mode, learn=learn)
        try:
            call = self.dispatcher.call(request, Context("r-1"))
            await self.dispatcher.dispatch(call, NoClient())
        except SlipstreamError as exc:
            return type(exc).__name__
        return "" if call.decision is None else str(call.decision.reason)

    @property
    def told(self) -> list[tuple[Arm, str]]:
        return [(seen.arm, seen.status) for seen in self.store.told]


@pytest.fixture
async def desk(async_exit_stack: AsyncExitStack) -> Callable[[str], Desk]:
    """Makes desks; all are closed after the test."""

    def make(text: str) -> Desk:
        made = Desk(text)
        async_exit_stack.callback(made.telemetry.close)
        async_exit_stack.push_async_callback(made.fleet.aclose)
        async_exit_stack.push_async_callback(made.parity.aclose)
        return made

    return make


UNREACHED = (Arm.SPECULATIVE, "upstream_unavailable")
BROKEN = (Arm.SPECULATIVE, "upstream_failed")


@pytest.mark.parametrize("stream", [False, True])
async def test_attempt_that_fails_before_the_first_byte_is_told_though_the_client_gets_its_answer(
    desk: Make, openai_server: Make, stream: bool
) -> None:
    at = desk(manifest_text([openai_server().url], [dead_url()]))
    assert await at.ask(chat("tokens=3", stream=stream)) == Reason.SPECULATIVE_UNAVAILABLE
    [seen] = at.store.told
    assert (seen.arm, seen.status, seen.reason) == (*UNREACHED, Reason.CLIENT_ASKED)
    assert (seen.pool, seen.draft_length, seen.output_tokens) == ("pair/speculative", 5, 0)
    assert seen.request_class == seen.subject.cold_class
    assert 0 < seen.e2e_s < 5
    assert seen.ttft_s is None


async def test_every_attempt_that_fails_is_told_once(desk: Make, openai_server: Make) -> None:
    at = desk(manifest_text([openai_server().url], [dead_url(), dead_url()]))
    assert await at.ask(chat("tokens=3")) == Reason.SPECULATIVE_UNAVAILABLE
    assert at.told == [UNREACHED, UNREACHED]


@pytest.mark.integration
async def test_request_that_ends_with_the_failure_tells_it_once(desk: Make) -> None:
    at = desk(manifest_text([dead_url()], [dead_url()]))
    assert await at.ask(chat("tokens=3")) == "UpstreamUnavailable"
    assert at.told == [UNREACHED]  # what failed on the plain arm says nothing of the speculative one


async def test_stream_that_breaks_is_told_once_whatever_came_before(desk: Make, openai_server: Make) -> None:
    at = desk(manifest_text([openai_server().url], [openai_server().url]))
    assert await at.ask(chat("tokens=9 die=3 nousage", stream=True)) == "StreamInterrupted"
    assert at.told == [BROKEN]
    again = desk(manifest_text([openai_server().url], [dead_url(), openai_server().url]))
    found = {await again.ask(chat("tokens=9 die=3", stream=True)) for _ in range(2)}  # servers take turns
    assert found == {"StreamInterrupted"}
    assert sorted(again.told) == sorted([BROKEN, BROKEN, UNREACHED])


async def test_failures_of_the_plain_arm_are_told_as_before(desk: Make, openai_server: Make) -> None:
    at = desk(manifest_text([dead_url(), openai_server().url], [openai_server().url]))
    assert [await at.ask(chat("tokens=3"), mode=Mode.PLAIN) for _ in range(2)] == [Reason.CLIENT_ASKED] * 2
    assert at.told == [(Arm.PLAIN, "ok")]  # the other took two attempts, and says nothing of how long one takes


@pytest.mark.integration
@pytest.mark.parametrize("stream", [False, True])
async def test_attempt_of_the_control_that_fails_is_told_once(desk: Make, stream: bool) -> None:
    """The operator compares errors of both arms; the request tries each server again."""
    held_back = ", decision: rules, minConfidence: 0, maxRareTokenShare: 1, holdBackShare: 1"
    at = desk(manifest_text([dead_url(), dead_url()], [dead_url()], policy=held_back))
    assert await at.ask(chat("tokens=3", stream=stream), mode=Mode.AUTO) == "UpstreamUnavailable"
    assert at.told == [(Arm.CONTROL, "upstream_unavailable")]
    assert at.evidence.report("pair") == []


async def test_estimates_and_comparison_learn_nothing_of_failures_and_comparisons(
    desk: Make, openai_server: Make
) -> None:
    at = desk(manifest_text([openai_server().url], [dead_url()]))
    for _ in range(2):  # after that, its server is known to be down
        await at.ask(chat("tokens=3"))
    assert at.told == [UNREACHED, UNREACHED]
    assert _learnt(at) == 0
    assert at.evidence.report("pair") == []


async def test_client_that_wants_no_trace_leaves_none(desk: Make, openai_server: Make) -> None:
    at = desk(manifest_text([openai_server().url], [dead_url()], policy=", parityShare: 1"))
    await at.ask(chat("tokens=3"), learn=False)
    assert at.told == []


async def test_answer_to_a_client_that_wants_no_trace_is_not_replayed(desk: Make, openai_server: Make) -> None:
    plain, speculative = openai_server(), openai_server()
    at = desk(manifest_text([plain.url], [speculative.url], policy=", parityShare: 1"))
    for learn in (False, True):
        await at.ask(chat("tokens=3"), learn=learn)
    await soon(lambda: [status for _, status in at.told] == ["ok", "parity"], "a comparison", seen=lambda: at.told)
    assert (len(plain.requests), len(speculative.requests)) == (1, 2)


@pytest.mark.parametrize("stream", [False, True])
async def test_answer_is_priced_for_the_engines_time_where_both_arms_have_the_same_servers(
    desk: Make, openai_server: Make, stream: bool
) -> None:
    url = openai_server().url
    at = desk(manifest_text([url], [url]))
    for mode in (Mode.SPECULATIVE, Mode.PLAIN):
        for script in ("tokens=3 engine=0.125", "tokens=3", "tokens=3 engine=-1"):
            await at.ask(chat(script, stream=stream), mode=mode)
    assert [seen.priced_s for seen in at.store.told] == [0.125, None, None] * 2


async def test_answer_is_priced_for_its_whole_time_where_each_arm_has_servers_of_its_own(
    desk: Make, openai_server: Make
) -> None:
    """A share of the steps depends on how many others are there, which differs with the use of the two."""
    at = desk(manifest_text([openai_server().url], [openai_server().url]))
    for mode in (Mode.SPECULATIVE, Mode.PLAIN):
        await at.ask(chat("tokens=3 engine=0.125"), mode=mode)
    assert [seen.priced_s for seen in at.store.told] == [seen.e2e_s for seen in at.store.told]
    assert len(at.store.told) == 2


@pytest.mark.parametrize(("odd_token", "expected"), [(None, "match"), (1, "mismatch")])
@pytest.mark.parametrize("stream", [False, True])
async def test_comparison_is_told_beside_the_answer_itself(
    desk: Make, openai_server: Make, odd_token: int | None, expected: str, stream: bool
) -> None:
    plain, speculative = openai_server(), openai_server()
    plain.odd_token = odd_token
    at = desk(manifest_text([plain.url], [speculative.url], policy=", parityShare: 1"))
    assert await at.ask(chat("tokens=3", stream=stream, stream_options={"include_usage": True} if stream else None))
    await soon(lambda: len(at.store.told) == 2)
    [answer, compared] = sorted(at.store.told, key=lambda seen: seen.status)
    assert (answer.status, answer.parity) == ("ok", None)
    assert (compared.status, compared.parity, compared.arm) == ("parity", expected, Arm.SPECULATIVE)
    assert (compared.subject, compared.request_class) == (answer.subject, answer.request_class)
    assert compared.pool == "pair/speculative"
    # The comparison belongs to the time of the answer, not to that of its replay.
    assert compared.e2e_s > answer.e2e_s
    assert compared.time_s - compared.e2e_s <= answer.time_s < compared.time_s
    assert _learnt(at) == 1


class Holding:
    """A server that takes connections and drops them once `drop` is called."""

    def __init__(self) -> None:
        self.knocks, self._dropped = 0, asyncio.Event()

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._client, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def drop(self) -> None:
        self._dropped.set()
        self._server.close()

    async def _client(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.knocks += 1
        await self._dropped.wait()
        writer.close()


async def test_kill_between_two_attempts_ends_those_on_the_speculative_arm(desk: Make, openai_server: Make) -> None:
    holding = [Holding(), Holding()]
    plain, speculative = openai_server().url, [await server.start() for server in holding]
    at = desk(manifest_text([plain], speculative))
    asked = asyncio.create_task(at.ask(chat("tokens=3")))
    await soon(lambda: any(server.knocks for server in holding))
    at.fleet.swap(compile_table(parse(manifest_text([plain], speculative, policy=", killSwitch: true"))))
    for server in holding:
        server.drop()
    assert await asked == Reason.KILL_SWITCH
    assert sorted(server.knocks > 0 for server in holding) == [False, True]
    assert [arm for arm, _ in at.told] == [Arm.SPECULATIVE]


def _learnt(at: Any) -> float:
    """The number of answers behind the estimate of the first told outcome's class."""
    found = forecast_for(at.learner, at.store.told[0], plain="pair/plain", speculative="pair/speculative")
    return found.output_tokens.samples


def test_replicas_of_different_versions_understand_each_other() -> None:
    """Releases before did not know `parity` and `priced_s`; one to come may know more than this one."""
    before = msgspec.defstruct(
        "Before",
        [
            (field.name, field.type) if field.required else (field.name, field.type, field.default)
            for field in msgspec.structs.fields(Observation)
            if field.name not in ("parity", "priced_s")
        ],
        kw_only=True,
    )
    frame = encode([observe(status="parity", parity="mismatch", priced_s=0.5)], first=1)
    assert frame is not None
    [read] = msgspec.msgpack.decode(frame.payload, type=list[before])  # type: ignore[valid-type]
    assert (read.status, read.request_class) == ("parity", "summarization/long")
    old = msgspec.to_builtins(observe())
    del old["parity"], old["priced_s"]
    newer = msgspec.to_builtins(observe()) | {"hindsight": 1.0}
    found = decode(msgspec.msgpack.encode([old, newer]), pair="p")
    assert found == [observe(), observe()]
