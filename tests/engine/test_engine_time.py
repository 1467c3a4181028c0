"""Division of the engine's time among requests."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from slipstream_engine.contract.types import Chunk
from slipstream_engine.step.engine import Engine
from slipstream_engine.step.engine_time import EngineTime

from tests.engine.requests_and_answers import Make, generation_request

CPU = torch.device("cpu")


def steps_of(engine: Engine) -> tuple[list[list[Chunk]], list[tuple[float, float]]]:
    """The chunks of each step until the engine is idle, and when the step began and ended."""
    chunks, times = [], []
    while engine.busy:
        begun_s = time.perf_counter()
        chunks.append(engine.step())
        times.append((begun_s, time.perf_counter()))
    return chunks, times


def charged(step: list[Chunk], before: list[Chunk]) -> dict[str, float]:
    """What `step` added to the time of each request."""
    earlier = {chunk.request_id: chunk.counts.engine_s for chunk in before}
    return {chunk.request_id: chunk.counts.engine_s - earlier[chunk.request_id] for chunk in step}


@pytest.mark.parametrize("draft", ["close", "ngram", None])
def test_times_of_all_requests_add_up_to_the_time_in_which_the_engine_was_busy(
    make_engine: Make, draft: str | None
) -> None:
    """The bounds are strict on any machine. Charges follow each other without a gap. The first begins in the first
    step, and the last ends in the last one, so that these two steps alone may count in part."""
    engine = make_engine(draft, max_slots=3, prefill_chunk_tokens=8)
    for index in range(7):
        engine.add(generation_request(str(index), draft_tokens=index % 4, max_tokens=10 + 12 * index))
    chunks, times = steps_of(engine)
    last = {chunk.request_id: chunk.counts.engine_s for step in chunks for chunk in step}
    assert len(last) == 7
    assert min(last.values()) > 0.0
    assert times[-1][0] - times[0][1] <= sum(last.values()) <= times[-1][1] - times[0][0]


def test_time_between_two_runs_is_charged_to_nobody(make_engine: Make) -> None:
    engine = make_engine("close")
    engine.add(generation_request("first", draft_tokens=2))
    steps_of(engine)
    time.sleep(0.5)
    engine.add(generation_request("second", draft_tokens=2))
    chunks, times = steps_of(engine)
    assert chunks[-1][0].counts.engine_s <= times[-1][1] - times[0][0]


def test_each_of_four_plain_requests_in_a_batch_is_charged_a_quarter(make_engine: Make) -> None:
    engine = make_engine("close")
    for name in "abcd":
        engine.add(generation_request(name))
    chunks, times = steps_of(engine)
    together = [index for index in range(1, len(chunks)) if len(chunks[index]) == len(chunks[index - 1]) == 4]
    assert len(together) > 30
    for index in together:
        shares = charged(chunks[index], chunks[index - 1])
        whole = sum(shares.values())
        assert whole <= times[index][1] - times[index - 1][0]
        assert list(shares.values()) == pytest.approx([whole / 4] * 4)


def test_request_with_drafts_is_charged_its_rows_and_the_draft(make_engine: Make) -> None:
    engine = make_engine("close")
    for name in "abc":
        engine.add(generation_request(name))
    engine.add(generation_request("fast", draft_tokens=4))
    chunks, _ = steps_of(engine)
    together = [index for index in range(1, len(chunks)) if len(chunks[index]) == len(chunks[index - 1]) == 4]
    assert len(together) > 5
    for index in together[:5]:
        shares = charged(chunks[index], chunks[index - 1])
        assert shares["a"] == pytest.approx(shares["b"])
        assert shares["a"] == pytest.approx(shares["c"])
        assert shares["fast"] > 5.0 * shares["a"]  # five of eight rows, and all of the draft's time


@given(
    st.lists(
        st.tuples(st.floats(1e-6, 10.0), st.lists(st.integers(0, 500), min_size=3, max_size=3)), min_size=1, max_size=20
    )
)
def test_shares_are_in_proportion_to_rows_and_add_up(passes: list[tuple[float, list[int]]]) -> None:
    now_s = 0.0
    engine_time = EngineTime(CPU, lambda: now_s)
    requests = [SimpleNamespace(engine_s=0.0) for _ in range(3)]
    expected, open_s = [0.0] * 3, 0.0
    for passed_s, rows in passes:
        now_s += passed_s
        open_s += passed_s
        engine_time.charge(requests, rows)
        if sum(rows):
            expected = [sum_s + open_s * count / sum(rows) for sum_s, count in zip(expected, rows, strict=True)]
            open_s = 0.0
    assert [one.engine_s for one in requests] == pytest.approx(expected)
    assert sum(one.engine_s for one in requests) + open_s == pytest.approx(now_s)
