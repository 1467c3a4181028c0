"""The engine's time of each request: divided by rows, counted once, and told with the counts of drafts."""

from __future__ import annotations

import os
import time
from typing import Any

import msgspec
import pytest
from scripted import BLOCK_SIZE, MOST, Engine, configuration, request, scheduler_for
from slipstream_vllm import engine_time
from slipstream_vllm.engine_time import EngineTime, shares, timed
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.metrics.stats import RequestSpecDecodeMetrics

TARGET = os.environ["SLIPSTREAM_TARGET"]


@pytest.fixture(scope="module", autouse=True)
def hooks() -> None:
    engine_time.install()


@pytest.fixture(scope="module", params=[False, True], ids=["sync", "async"])
def config(request: pytest.FixtureRequest) -> Any:
    return configuration(TARGET, asynchronous=request.param)


@pytest.fixture
def engine(config: Any) -> Engine:
    config.observability_config.per_request_spec_decode_metrics = "summary"
    return Engine(scheduler_for(config))


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_steps_one_after_the_other_are_divided_by_rows_with_the_time_between_them() -> None:
    clock = Clock()
    times = EngineTime(clock)
    begun_s = times.now_s()
    clock.now_s += 8.0
    assert shares({"a": 5, "b": 1, "c": 2}, times.step_s(begun_s=begun_s)) == {"a": 5.0, "b": 1.0, "c": 2.0}
    times.updated(idle=False)
    clock.now_s += 1.0
    begun_s = times.now_s()
    clock.now_s += 3.0
    assert shares({"a": 1, "b": 3}, times.step_s(begun_s=begun_s)) == {"a": 1.0, "b": 3.0}


def test_time_without_requests_is_charged_to_nobody() -> None:
    clock = Clock()
    times = EngineTime(clock)
    times.step_s(begun_s=times.now_s())
    times.updated(idle=True)
    clock.now_s += 1_000.0
    begun_s = times.now_s()
    clock.now_s += 2.0
    assert shares({"b": 1}, times.step_s(begun_s=begun_s)) == {"b": 2.0}
    assert shares({}, times.step_s(begun_s=begun_s)) == {}


@pytest.mark.parametrize("idle", [False, True])
def test_two_steps_in_flight_count_each_moment_once(idle: bool) -> None:
    clock = Clock()
    times = EngineTime(clock)
    first_s = times.now_s()
    clock.now_s += 1.0
    second_s = times.now_s()
    clock.now_s += 4.0
    assert shares({"a": 1}, times.step_s(begun_s=first_s)) == {"a": 5.0}
    times.updated(idle=idle)  # all have ended, and a step for one of them was begun before that was known
    clock.now_s += 2.0
    assert shares({"a": 1}, times.step_s(begun_s=second_s)) == {"a": 2.0}


def told(engine: Engine) -> dict[str, float]:
    return {name.partition("-")[0]: counts.to_dict()["engine_seconds"] for name, counts in engine.counts.items()}


def test_times_of_all_requests_add_up_to_the_time_in_which_the_engine_was_busy(engine: Engine) -> None:
    """The bounds are strict on any machine: the first step and the last one alone may count in part. Times are told in
    microseconds."""
    engine.add(*(request(name, 0) for name in "abcd"))
    begun_s = time.perf_counter()
    engine.step()
    first_s = last_s = time.perf_counter()
    while engine.scheduler.has_unfinished_requests():  # after that, a step without rows tells workers who has ended
        last_s = time.perf_counter()
        engine.step()
    engine.drain()
    whole_s = sum(told(engine).values())
    assert last_s - first_s - 4e-6 <= whole_s <= time.perf_counter() - begun_s + 4e-6


def test_each_of_four_equal_requests_is_charged_a_quarter(engine: Engine) -> None:
    engine.add(*(request(name, 0, prompt=BLOCK_SIZE - 1) for name in "abcd"))  # nothing of it is cached
    engine.run()
    parts = told(engine)
    quarter = sum(parts.values()) / 4
    assert quarter > 1e-4
    assert list(parts.values()) == pytest.approx([quarter] * 4, abs=2e-6)


def test_prompt_that_is_cached_is_not_charged_again(engine: Engine) -> None:
    engine.add(
        request("first", 0, prompt=10 * BLOCK_SIZE, output=1), request("again", 0, prompt=10 * BLOCK_SIZE, output=1)
    )
    engine.run()
    parts = told(engine)
    assert parts["first"] > 2.0 * parts["again"] > 0.0


def test_request_with_drafts_is_charged_for_its_rows(engine: Engine) -> None:
    """Beside a plain request, which has one row in each step of decoding."""
    requests = request("plain", 0), request("fast", MOST)
    engine.add(*requests)
    for _ in range(4):
        engine.step()
    for _ in range(6):
        before = [one.slipstream_engine_s for one in requests]
        engine.step()
        plain_s, fast_s = (one.slipstream_engine_s - was_s for one, was_s in zip(requests, before, strict=True))
        drafts = engine.steps[-2 if engine.is_async else -1].verified["fast-0123abcd"]
        assert drafts > 0
        assert fast_s == pytest.approx((1 + drafts) * plain_s)


def test_counts_of_drafts_stay_what_they_are(engine: Engine) -> None:
    engine.add(request("fast", MOST))
    engine.run()
    counts = engine.counts["fast-0123abcd"].to_dict()
    assert counts["num_draft_tokens"] > 0
    assert counts["engine_seconds"] > 0.0
    assert counts["num_spec_steps"] == sum(counts["acceptance_histogram"])
    assert len(counts["acceptance_histogram"]) == MOST + 1


def test_outputs_of_a_request_with_stop_strings_tell_the_time_so_far(engine: Engine) -> None:
    stopping = request("a", 0)
    stopping.sampling_params.stop = ["never"]
    engine.add(stopping)
    seen = []
    for _ in range(10):
        engine.step()
        seen += [counts.to_dict()["engine_seconds"] for counts in engine.counts.values()]
    assert len(seen) > 5
    assert seen == sorted(seen)
    assert seen[-1] > seen[0]


def test_time_survives_the_way_to_the_api_server_and_leaves_the_counts_alone() -> None:
    counts = RequestSpecDecodeMetrics.new(MOST)
    counts.observe(4, 2)
    output = EngineCoreOutput(request_id="a", new_token_ids=[1], spec_decode_metrics=timed(counts, 0.0123456))
    arrived = msgspec.msgpack.decode(msgspec.msgpack.encode(output), type=EngineCoreOutput).spec_decode_metrics
    assert arrived.to_dict() == counts.to_dict() | {"engine_seconds": 0.012346}
    assert "engine_seconds" not in counts.to_dict()
