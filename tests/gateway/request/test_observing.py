"""What a finished request is turned into: counts that servers leave out, keys that nobody may read back."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slipstream_core.observation import Observation
from slipstream_core.types import Arm, Reason
from slipstream_gateway.decide.estimate import ArmComparisons
from slipstream_gateway.request.observations import (
    LEARNT_AT_ONCE,
    LEARNT_PER_KEY_S,
    LEARNT_PER_S,
    WAITING,
    MemoryStore,
    Outcomes,
    rejections,
    steps,
)
from slipstream_gateway.upstreams.base import Usage

from tests.gateway.learning.samples import observe


def test_what_the_engine_counted_is_taken_as_it_is() -> None:
    usage = Usage(drafted=40, accepted=30, steps=10, rejected_at=(3, 1, 0, 1))
    assert (steps(usage, 4), rejections(usage, 4)) == (10, 5)
    assert rejections(Usage(drafted=40, accepted=40, steps=10, rejected_at=(0, 0, 0, 0)), 4) == 0
    assert (steps(Usage(steps=7), 0), rejections(Usage(steps=7), 0)) == (7, 0)


@pytest.mark.parametrize("beta", [0.2, 0.5, 0.8, 0.95])
def test_rejections_that_a_server_does_not_count_are_estimated_from_its_draft_tokens(beta: float) -> None:
    """Against 5,000 simulated steps of draft length 5, each with acceptance probability β per token."""
    rng = random.Random(3)
    accepted = rejected = 0
    for _ in range(5000):
        run = 0
        while run < 5 and rng.random() < beta:
            run += 1
        accepted += run
        rejected += run < 5
    usage = Usage(drafted=25_000, accepted=accepted)
    assert steps(usage, 5) == 5000
    assert rejections(usage, 5) == pytest.approx(rejected, rel=0.04)


@given(drafted=st.integers(0, 5000), share=st.floats(0, 1), length=st.integers(0, 32), counted=st.integers(0, 500))
def test_estimated_counts_stay_within_what_happened(drafted: int, share: float, length: int, counted: int) -> None:
    usage = Usage(drafted=drafted, accepted=int(share * drafted), steps=counted)
    found = rejections(usage, length)
    assert 0 <= found <= drafted - usage.accepted
    assert (found > 0) is (usage.accepted < drafted)


def observation(key: str) -> Observation:
    return observe(key=key, arm=Arm.SPECULATIVE, reason=Reason.SPECULATION_PAYS)


def test_a_flood_of_outcomes_is_compared_in_full_and_learnt_up_to_a_rate() -> None:
    """A key that sends little meanwhile learns from its first answers of a second, at the flood's cost."""
    now_s = 0.0
    learner, evidence = Unlucky(), ArmComparisons()
    outcomes = Outcomes(learner=learner, evidence=evidence, store=MemoryStore(), clock=lambda: now_s)  # type: ignore[arg-type]
    for second in range(20):
        now_s = float(second)
        for _ in range(1000):
            outcomes.record(observation("flood"))
        for _ in range(LEARNT_PER_KEY_S + 5):
            outcomes.record(observation("late"))
    learnt = Counter(learner.seen)
    assert learnt["late"] == 20 * LEARNT_PER_KEY_S
    assert learnt.total() <= LEARNT_AT_ONCE + 20 * LEARNT_PER_S + LEARNT_PER_KEY_S
    assert learnt["flood"] > 0.8 * learnt.total()
    [found] = evidence.report("p")
    assert found.speculative == 20 * (1000 + LEARNT_PER_KEY_S + 5)


def test_a_flood_from_another_gateway_does_not_displace_other_keys() -> None:
    now_s = 0.0
    learner = Unlucky()
    outcomes = Outcomes(learner=learner, evidence=ArmComparisons(), store=MemoryStore(), clock=lambda: now_s)  # type: ignore[arg-type]
    outcomes.record(observation("busy"))
    for _ in range(10):
        outcomes.apply(observation("late"))
    for _ in range(2 * WAITING + int(LEARNT_AT_ONCE)):
        outcomes.apply(observation("flood"))
    learner.seen.clear()
    for _ in range(10):
        outcomes.apply(observation("late"))
    now_s = 1.0
    outcomes.apply(observation("flood"))
    assert Counter(learner.seen) == {"late": 10, "flood": LEARNT_PER_S - 10}


class Unlucky:
    """A learner that cannot take one of the outcomes, and remembers the others."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def record(self, observation: Observation) -> None:
        if observation.subject.key == "odd":
            raise ZeroDivisionError
        self.seen.append(observation.subject.key)


def test_an_outcome_that_cannot_be_learnt_ends_no_request_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    learner = Unlucky()
    outcomes = Outcomes(learner=learner, evidence=ArmComparisons(), store=MemoryStore(), clock=lambda: 0.0)  # type: ignore[arg-type]
    for key in ("odd", "a", "odd", "b"):
        outcomes.record(observation(key))
    assert learner.seen == ["a", "b"]
    assert [record.message for record in caplog.records if "learnt" in record.message] == [
        "an outcome could not be learnt from; others like it are not logged"
    ]


def test_of_a_long_history_the_newest_is_learnt_last_and_own_requests_go_first() -> None:
    now_s, learner = 0.0, Unlucky()
    outcomes = Outcomes(learner=learner, evidence=ArmComparisons(), store=MemoryStore(), clock=lambda: now_s)  # type: ignore[arg-type]
    for index in range(5000):
        outcomes.apply(observation(f"old{index}"))
    now_s = 60.0
    outcomes.record(observation("own"))
    assert learner.seen[500] == "own"
    now_s = 61.0
    outcomes.apply(observation("new"))
    assert learner.seen[-2:] == ["old4999", "new"]
    assert len(learner.seen) == 1002
