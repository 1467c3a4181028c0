"""The comparison of speculative answers with the control's of the same time."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slipstream_operator.rollout.analysis.paired import FEWEST_BLOCKS, PairedTimes

from tests.benchmarks import rollback, rollback_paired
from tests.benchmarks.rollback_paired import ALARM_AT, Trace, trace


def fed(found: Trace, times: PairedTimes | None = None) -> PairedTimes:
    seen = PairedTimes() if times is None else times
    for seconds, tokens, control in zip(*(column.tolist() for column in found), strict=True):
        seen.add(seconds, int(tokens), control=control)
    return seen


def test_no_loss_is_found_where_the_load_of_both_arms_swings() -> None:
    random = np.random.default_rng(1)
    traces = [trace(random, loss=0.0, share=0.1, requests=20_000) for _ in range(20)]
    assert sum(rollback_paired.paired(one) > 0 for one in traces) == 0
    assert sum(rollback_paired.alone(one) > 0 for one in traces) >= 15  # what the same traffic does to a limit alone
    assert sum(rollback_paired.beside_control(one) > 0 for one in traces) <= 1


@pytest.mark.parametrize(("loss", "most"), [(0.1, 2_500.0), (0.4, 300.0)])
def test_loss_is_found_soon_at_one_in_ten_as_control(loss: float, most: float) -> None:
    """The medians that tests/benchmarks/rollback_paired.py measures are 1,318 and 173 answers."""
    random = np.random.default_rng(2)
    traces = [trace(random, loss=loss, share=0.1, requests=8_000) for _ in range(15)]
    waits = [rollback_paired.answers_until(rollback_paired.paired, one, 0) for one in traces]
    assert np.median(waits) < most


def test_loss_after_a_long_time_without_one_is_found() -> None:
    random = np.random.default_rng(3)
    traces = [trace(random, loss=0.4, share=0.1, requests=12_000, begin=10_000) for _ in range(8)]
    assert all(0.0 < rollback_paired.answers_until(rollback_paired.paired, one, 10_000) < 1_500.0 for one in traces)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("loss", [-0.4, 0.0, 0.5, 3.0])
def test_change_is_a_share_of_the_controls_time(share: float, loss: float) -> None:
    seen = fed(trace(np.random.default_rng(4), loss=loss, share=share, requests=30_000))
    assert seen.step.change(seen.step.difference) == pytest.approx(loss, abs=0.08 * (1.0 + loss))


@pytest.mark.parametrize("alarms_apart", [True, False])
def test_alarms_that_come_with_load_do_not_hide_a_change(alarms_apart: bool) -> None:
    """Three in four requests are control while servers are slow, and one in fifty otherwise."""
    random, seen = np.random.default_rng(6), PairedTimes()
    for index in range(30_000):
        alarmed = index // 60 % 3 == 0
        control = random.random() < (0.75 if alarmed else 0.02)
        seconds = (4.0 if alarmed else 1.0) * (1.0 if control else 1.2) * math.exp(0.25 * random.standard_normal())
        seen.add(seconds, 200, control=control, alarmed=alarmed and alarms_apart)
    change = seen.step.change(seen.step.difference)
    if alarms_apart:
        assert change == pytest.approx(0.2, abs=0.05)
    else:
        assert change < 0.1, "what the blocks of alarms prevent"


def test_upper_bound_is_above_the_change_and_tightens() -> None:
    random = np.random.default_rng(5)
    widths = []
    for requests in (400, 4_000, 40_000):
        seen = fed(trace(random, loss=-0.3, share=0.3, requests=requests))
        bound = seen.upper_change(confidence=0.95, tuned_for=200)
        assert bound is not None
        assert bound > seen.step.change(seen.step.difference)
        widths.append(bound + 0.3)
    assert widths[0] > widths[1] > widths[2] > 0.0


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_gain_that_is_not_there_is_hardly_ever_shown_however_often_one_looks(share: float) -> None:
    random = np.random.default_rng(11)
    shown = rollback.promotions(random, gain=0.02, margin=0.02, share=share, classes=60)
    assert sum(at > 0 for at in shown) <= 6


def test_gain_that_is_there_is_shown_within_a_few_hundred_answers() -> None:
    random = np.random.default_rng(12)
    shown = rollback.promotions(random, gain=0.3, margin=0.02, share=0.5, classes=20)
    assert all(0 < at < 1_500 for at in shown)


def test_loss_within_the_margin_is_none_and_a_larger_one_later_is_found() -> None:
    random = np.random.default_rng(8)
    seen = fed(trace(random, loss=0.08, share=0.5, requests=30_000))
    assert seen.found_loss(ALARM_AT, margin=0.15) is None
    assert seen.found_loss(ALARM_AT, margin=0.02) is seen.began
    seen = fed(trace(random, loss=-0.1, share=0.5, requests=10_000))
    fed(trace(random, loss=0.5, share=0.5, requests=2_000), seen)
    assert seen.found_loss(ALARM_AT, margin=0.15) is seen.doubted


def test_higher_cost_is_found_by_what_it_is_above_the_allowed_increase() -> None:
    random = np.random.default_rng(9)
    dear = [trace(random, loss=0.48, share=0.05, requests=6_000) for _ in range(8)]
    assert all(0 < rollback_paired.dearer(one) < 4_000 for one in dear)
    allowed = [trace(random, loss=rollback_paired.COST_INCREASE, share=0.1, requests=8_000) for _ in range(15)]
    assert sum(rollback_paired.dearer(one) > 0 for one in allowed) == 0


def test_one_endless_answer_is_no_evidence_of_many() -> None:
    seen = PairedTimes()
    for index in range(2_000):
        seen.add(1e6 if index == 1_001 else 1.0 + index % 7 / 10.0, 100, control=index % 4 == 0)
    assert seen.found_loss(ALARM_AT, margin=0.0) is None


def test_one_arm_alone_says_nothing() -> None:
    seen = PairedTimes()
    for _ in range(1_000):
        seen.add(5.0, 100, control=False)
    assert (seen.step.n, seen.found_loss(ALARM_AT, margin=0.02)) == (0, None)
    assert seen.upper_change(confidence=0.95, tuned_for=200) is None
    assert (seen.step_speculative, seen.step_control) == (1_000, 0)


def test_few_blocks_say_nothing_however_clear_they_are() -> None:
    seen = PairedTimes()
    while seen.step.n < FEWEST_BLOCKS - 1:
        for control in (True, False, False, False):
            seen.add(0.01 if control else 100.0, 100, control=control)
    assert seen.found_loss(ALARM_AT, margin=0.02) is None
    assert seen.upper_change(confidence=0.95, tuned_for=200) is None


def test_step_begins_with_its_first_answer_and_the_search_for_a_loss_goes_on() -> None:
    seen = fed(trace(np.random.default_rng(6), loss=0.0, share=0.5, requests=1_001))
    blocks = seen.began.n
    seen.begin_step()
    assert (seen.step.n, seen.step_speculative, seen.step_control) == (0, 0, 0)
    assert (seen.speculative.n, seen.control.n, seen.began.n) == (0, 0, blocks)


def test_longer_answers_of_one_arm_by_chance_are_not_its_loss() -> None:
    """Time goes with tokens: an arm that had the longer answers is not slower."""
    random = np.random.default_rng(7)
    seen = PairedTimes()
    for index in range(4_000):
        control = index % 4 == 0
        tokens = int(random.integers(100, 300)) * (1 if control else 2)
        seen.add(0.01 * tokens * random.uniform(0.9, 1.1), tokens, control=control)
    assert abs(seen.step.change(seen.step.difference)) < 0.05


@given(
    answers=st.lists(
        st.tuples(st.floats(1e-6, 1e5), st.integers(1, 10_000_000), st.booleans()), min_size=1, max_size=300
    )
)
def test_whatever_comes_the_state_stays_finite_and_survives_a_checkpoint(
    answers: list[tuple[float, int, bool]],
) -> None:
    seen = PairedTimes()
    for seconds, tokens, control in answers:
        seen.add(seconds, tokens, control=control)
    seen.found_loss(ALARM_AT, margin=0.02)
    bound = seen.upper_change(confidence=0.95, tuned_for=200)
    assert bound is None or not math.isnan(bound)
    assert all(map(math.isfinite, (*seen.since_began, *seen.since_doubt, seen.squares, seen.unexplained)))
    packed = msgspec.msgpack.encode(seen)
    assert msgspec.msgpack.decode(packed, type=PairedTimes) == seen
