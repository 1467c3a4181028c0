"""The fault harness in small: its cases are played once each, and its judge finds what is wrong with an answer."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.e2e.chaos.answers import Answer
from tests.e2e.chaos.asks import chat
from tests.e2e.chaos.clients import vanishing
from tests.e2e.chaos.redis_faults import redis_faults
from tests.e2e.chaos.restarts import rolling_restart
from tests.e2e.chaos.table import Reading
from tests.e2e.chaos.triton_faults import triton_kill
from tests.e2e.chaos.verdicts import Expected, Verdict, judge
from tests.e2e.chaos.world import Scale, World, running_world

SMALL = Scale(
    calm_answers=8,
    kills=1,
    redis_fault_s=0.5,
    streams=20,
    stream_words=20,
    vanishing=40,
    vanishing_engine=2,
)
RIGHT = Expected(texts=("The parcel is on its way.",), finish_reasons=("stop",), output_tokens=7)
ASK = chat("any", "x", {}, stream=True)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, triton_endpoint: str) -> Iterator[World]:
    """The run's own Triton stands, and a second one is there to be broken."""
    standing = [f"grpc://{triton_endpoint}"]
    with running_world(tmp_path_factory.mktemp("chaos"), replicas=1, standing=standing) as running:
        running.learn(prompts=1)
        yield running


def found(readings: Iterator[Reading]) -> Reading:
    """The first reading: what became of the requests. The others are of time, which a busy machine has no goals for."""
    first, *_ = readings
    return first


def test_killed_triton_breaks_no_resumable_answer(world: World) -> None:
    reading = found(triton_kill(world, SMALL))
    assert reading.passed, reading
    world.heal()


def test_broken_redis_is_noticed_by_no_request(world: World) -> None:
    readings = list(redis_faults(world, SMALL))
    assert len(readings) == 4
    assert all(reading.passed for reading in readings), readings


def test_rolling_restart_breaks_no_stream(world: World) -> None:
    reading = found(rolling_restart(world, SMALL))
    assert reading.passed, reading


def test_vanished_clients_leave_no_work_behind(world: World) -> None:
    """It raises where the upstream or the engine goes on working for nobody."""
    assert len(list(vanishing(world, SMALL))) == 2


def answer(text: str, *, done: bool = True, **fields: object) -> Answer:
    whole = Answer(
        ask=ASK, status=200, texts=(text,), finish_reasons=("stop" if done else None,), output_tokens=7, done=done
    )
    return msgspec.structs.replace(whole, **fields)


@given(st.integers(0, len(RIGHT.texts[0]) - 1), st.characters(), st.booleans())
def test_any_changed_character_is_wrong_however_the_answer_ends(at: int, other: str, done: bool) -> None:
    [right] = RIGHT.texts
    text = right[:at] + other + right[at + 1 :]
    verdict = judge(answer(text, done=done), RIGHT).verdict
    assert verdict is Verdict.WRONG or text == right


@given(st.integers(0, len(RIGHT.texts[0]) - 1), st.integers(1, 5))
def test_repeated_text_is_wrong(at: int, length: int) -> None:
    [right] = RIGHT.texts
    text = right[: at + length] + right[at:]
    assert judge(answer(text), RIGHT).verdict is Verdict.WRONG


def test_every_other_end_has_its_verdict() -> None:
    [right] = RIGHT.texts
    half = right[:9]
    cases = [
        (answer(right), Verdict.RIGHT),
        (answer(right, output_tokens=8), Verdict.WRONG),
        (answer(right, finish_reasons=("length",)), Verdict.WRONG),
        (answer(half), Verdict.WRONG),
        (answer(half, done=False), Verdict.CUT),
        (answer(half, done=False, error="upstream_failed"), Verdict.EXPLAINED),
        (answer(half, done=False, broken="reset"), Verdict.BROKEN),
        (answer(half, done=False, broken="no end within 60 s"), Verdict.HUNG),
        (answer("", status=503, texts=(), error="upstream_unavailable"), Verdict.REFUSED),
        (answer("", status=500, texts=(), error="internal"), Verdict.FAILED),
    ]
    assert [judge(each, RIGHT).verdict for each, _ in cases] == [verdict for _, verdict in cases]
    assert not judge(cases[5][0], RIGHT).acceptable
    not_resumable = msgspec.structs.replace(ASK, resumable=False)
    assert judge(msgspec.structs.replace(cases[5][0], ask=not_resumable), RIGHT).acceptable
