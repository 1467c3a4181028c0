"""What runs or waits can be told to go on plainly: its text does not show when, and what comes later drafts again."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slipstream_engine.contract.types import Chunk, SamplingParams
from slipstream_engine.embedded import demo
from slipstream_engine.serving.loading import load_engine
from slipstream_engine.serving.service import EngineService
from slipstream_engine.settings import EngineSettings
from slipstream_engine.step.engine import Engine

from tests.engine.requests_and_answers import Make, drain, generation_request, text_of, tokens_of, without_engine_time

_request = partial(generation_request, draft_tokens=4)


@pytest.fixture(scope="module")
def embedded() -> Engine:
    """The pair that comes with the package."""
    return load_engine(
        EngineSettings(
            target="embedded:target", draft="embedded:draft", draft_kind="model", device="cpu", threads=1, max_slots=2
        )
    )


def test_greedy_tokens_are_the_same_whichever_step_drafting_stops_at(embedded: Engine) -> None:
    prompts = [embedded.tokenizer.render_chat(messages) for messages in (demo.CALL_SUMMARY, demo.EXTRACTION)]
    requests = [_request(str(i), prompt_ids=prompt, max_tokens=48) for i, prompt in enumerate(prompts)]
    undisturbed = drain(embedded, requests)
    steps = max(len(row) for row in undisturbed.values())
    drafted = []
    for stop_before in range(steps + 1):
        stopped = drain(embedded, requests, stop_before=stop_before)
        for name, row in stopped.items():
            assert tokens_of(row) == tokens_of(undisturbed[name])
            assert text_of(row) == text_of(undisturbed[name])
            assert row[-1].finish_reason is undisturbed[name][-1].finish_reason
        drafted.append(sum(row[-1].counts.drafted for row in stopped.values()))
    assert drafted[0] == 0
    assert drafted == sorted(drafted)
    assert drafted[-1] == sum(row[-1].counts.drafted for row in undisturbed.values())


@pytest.mark.parametrize("draft", ["close", "far", "ngram"])
def test_what_was_stopped_never_drafts_again_and_leaves_its_slot_clean(make_engine: Make, draft: str) -> None:
    engine = make_engine(draft, max_slots=1)
    alone = drain(make_engine(draft, max_slots=1), [_request("next")])["next"]
    repetitive = tuple(b"abcdef") * 4
    row = drain(engine, [_request(prompt_ids=repetitive, max_tokens=100)], stop_before=14)["a"]
    at_the_stop = row[13].counts.drafted
    assert at_the_stop > 0
    assert {chunk.counts.drafted for chunk in row[13:]} == {at_the_stop}
    assert row[-1].counts.output_tokens == 100
    found = drain(engine, [_request("next")])["next"]
    assert without_engine_time(found) == without_engine_time(alone)  # tokens, text and counts


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stop_before=st.integers(1, 12),
    seed=st.integers(-(2**63), 2**63 - 1),
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
    draft=st.sampled_from(["close", "far", "ngram"]),
)
def test_a_sampled_answer_is_the_plain_one_whichever_step_drafting_stops_at(
    make_engine: Make, stop_before: int, seed: int, temperature: float, draft: str
) -> None:
    request = _request(sampling=SamplingParams(temperature=temperature, seed=seed), max_tokens=20)
    row = drain(make_engine(draft), [request], stop_before=stop_before)["a"]
    plain = _request("plain", sampling=request.sampling, max_tokens=20, draft_tokens=0)
    assert tokens_of(row) == tokens_of(drain(make_engine(None), [plain])["plain"])


def test_stopping_reaches_prompts_that_are_half_taken_in_and_requests_that_wait(make_engine: Make) -> None:
    engine = make_engine("close", max_slots=1, prefill_chunk_tokens=2)
    chunks = drain(engine, [_request("half"), _request("waiting")], stop_before=2)
    assert [row[-1].counts.drafted for row in chunks.values()] == [0, 0]
    assert [row[-1].counts.output_tokens for row in chunks.values()] == [40, 40]


@pytest.fixture
def service(make_engine: Make) -> Iterator[EngineService]:
    service = EngineService(make_engine("close", max_slots=2, max_waiting=4))
    service.begin()
    yield service
    service.close()


class _Held:
    """Takes chunks and holds the step thread at the first one until `let_go`, so that a test can act meanwhile."""

    def __init__(self) -> None:
        self.arrived, self._gate = threading.Event(), threading.Event()
        self.chunks: queue.Queue[Chunk] = queue.Queue()

    def put(self, chunk: Chunk) -> None:
        self.arrived.set()
        self._gate.wait(30)
        self.chunks.put(chunk)

    def let_go(self) -> None:
        self._gate.set()

    def last(self) -> Chunk:
        while (chunk := self.chunks.get(timeout=30)).finish_reason is None:
            pass
        return chunk


def test_service_stops_what_was_submitted_before_and_nothing_that_comes_after(service: EngineService) -> None:
    held, more = _Held(), {name: _Held() for name in ("before", "after")}
    for other in more.values():
        other.let_go()
    service.submit(_request("running"), held.put)
    assert held.arrived.wait(30)  # its first token is here: the step thread waits in the callback
    service.submit(_request("before"), more["before"].put)
    service.stop_drafting()
    service.submit(_request("after"), more["after"].put)
    held.let_go()
    assert held.last().counts.drafted == 0
    assert more["before"].last().counts.drafted == 0
    assert more["after"].last().counts.drafted > 0


def test_a_request_that_was_overtaken_on_its_way_decodes_plainly(service: EngineService) -> None:
    overtaken, later = _Held(), _Held()
    stops = service.stops
    service.stop_drafting()
    for name, taker, since in (("overtaken", overtaken, stops), ("later", later, service.stops)):
        taker.let_go()
        service.submit(_request(name), taker.put, stops=since)
    assert overtaken.last().counts.drafted == 0
    assert later.last().counts.drafted > 0


def test_many_threads_may_stop_drafting_while_others_submit(service: EngineService) -> None:
    """Whatever the order, every answer is the same, and nobody hangs."""
    answers: queue.Queue[list[Chunk]] = queue.Queue()

    def submit(name: str) -> None:
        row: list[Chunk] = []
        ended = threading.Event()

        def take(chunk: Chunk) -> None:
            row.append(chunk)
            if chunk.finish_reason is not None:
                ended.set()

        for turn in range(5):
            row.clear()
            ended.clear()
            service.submit(_request(f"{name}-{turn}"), take, stops=service.stops)
            assert ended.wait(30)
            answers.put(list(row))

    threads = [threading.Thread(target=submit, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    while alive := [thread for thread in threads if thread.is_alive()]:
        service.stop_drafting()
        alive[0].join(0.002)
    found = [answers.get_nowait() for _ in range(15)]
    assert len({tuple(tokens_of(row)) for row in found}) == 1
