"""The console's sums: quantiles, comparisons over classes, and recent traffic."""

from __future__ import annotations

import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from slipstream_core.types import Arm, Decision, Reason
from slipstream_gateway.console import ddsketch
from slipstream_gateway.console.recent_traffic import BUCKET_S, BUCKETS, RecentTraffic
from slipstream_gateway.console.view import overall
from slipstream_gateway.decide.estimate.evidence import evidence_of
from slipstream_gateway.decide.estimate.moments import Comparison, Sample
from slipstream_gateway.request.outcome import Outcome
from slipstream_gateway.upstreams.base import Usage

CLASSES = ("summarization/long", "code/short")
times_s = st.floats(min_value=1e-5, max_value=1e4)


def _outcome(request_class: str, arm: Arm, e2e_s: float) -> Outcome:
    speculative = arm is Arm.SPECULATIVE
    return Outcome(
        pair="ns/pair",
        model="m",
        decision=Decision(
            arm=arm, reason=Reason.SPECULATION_PAYS if speculative else Reason.BREAK_EVEN, request_class=request_class,
            draft_length=4 if speculative else 0, detail="", numbers={},
        ),
        status="ok",
        e2e_s=e2e_s,
        ttft_s=e2e_s / 2,
        tpot_s=None,
        resumed=("stalled",) if arm is Arm.PLAIN else (),
        usage=Usage(output_tokens=7, drafted=8 * speculative, accepted=5 * speculative, steps=2, rejected_at=(1,)),
    )  # fmt: skip


def _compared(values: list[float]) -> Comparison:
    found = Comparison()
    for index, value in enumerate(values):
        (found.speculative if index % 2 else found.control).e2e_s.add(value)
    return found


@given(values=st.lists(times_s, min_size=1, max_size=200), share=st.floats(0, 1))
def test_a_quantile_is_within_its_accuracy(values: list[float], share: float) -> None:
    bins: ddsketch.Bins = {}
    for value in values:
        ddsketch.add(bins, value)
    exact = sorted(values)[math.floor(share * (len(values) - 1))]
    (found,) = ddsketch.quantiles(bins, [share])
    assert abs(found - exact) <= ddsketch.ACCURACY * exact * 1.0001


@given(first=st.lists(times_s, max_size=50), second=st.lists(times_s, max_size=50))
def test_joined_samples_are_the_sample_of_all(first: list[float], second: list[float]) -> None:
    one, other, both = Sample(), Sample(), Sample()
    for value in first:
        one.add(value)
        both.add(value)
    for value in second:
        other.add(value)
        both.add(value)
    one.join(other)
    assert one.n == both.n
    assert math.isclose(one.mean, both.mean, rel_tol=1e-9, abs_tol=1e-12)
    assert math.isclose(one.squares, both.squares, rel_tol=1e-6, abs_tol=1e-6)


def test_all_classes_are_compared_in_the_shares_of_what_speculates() -> None:
    """Long answers are 4 times as dear and held back more often: pooled as they come, speculation would look bad."""
    long, short = Comparison(), Comparison()
    for index in range(300):
        jitter = 1.0 + 0.01 * (index % 3 - 1)
        short.control.e2e_s.add(1.0 * jitter)
        if index < 30:
            short.speculative.e2e_s.add(0.5 * jitter)
            long.control.e2e_s.add(4.0 * jitter)
        long.speculative.e2e_s.add(2.0 * jitter)
    effect = overall([{"": long}, {"": short}, {}], lambda arm: arm.e2e_s)
    assert effect.speed_up is not None
    assert math.isclose(effect.speed_up, 2.0, rel_tol=1e-3)
    assert effect.speed_up_low is not None
    assert effect.speed_up_high is not None
    assert 1.95 < effect.speed_up_low < 2.0 < effect.speed_up_high < 2.05


def test_a_class_weighs_as_much_with_one_key_as_with_several() -> None:
    """Of several keys only the middle one is compared, but the answers of all are in the class."""
    fast = {key: _compared([1.0, 0.5, 1.02, 0.51] * 20) for key in "abc"}
    slow = {"": _compared([1.0, 2.0, 1.02, 2.04] * 60)}
    effect = overall([fast, slow], lambda arm: arm.e2e_s)
    assert effect.speed_up is not None
    assert math.isclose(effect.speed_up, 1.0 / 1.25, rel_tol=1e-6)


def test_one_class_over_all_classes_is_that_class() -> None:
    found = _compared([1.0, 0.4, 1.2, 0.5, 1.1, 0.6, 0.9, 0.3])
    alone, together = evidence_of("c", {"": found}).e2e_s, overall([{"": found}], lambda arm: arm.e2e_s)
    assert alone.speed_up is not None
    assert together.speed_up == alone.speed_up
    assert together.speed_up_low is not None
    assert math.isclose(together.speed_up_low, alone.speed_up_low or 0.0, rel_tol=1e-9)


def test_cancelled_requests_have_not_failed_and_old_buckets_are_not_shown() -> None:
    now_s = 1e9
    recorder = RecentTraffic(clock=lambda: now_s)
    outcome = _outcome(CLASSES[0], Arm.PLAIN, 1.0)
    for status in ("ok", "cancelled", "error"):
        recorder.record(msgspec.structs.replace(outcome, status=status))
        now_s -= 2 * BUCKET_S  # a clock that is set back goes on with the newest bucket
    now_s = 1e9
    _, [bucket] = recorder.buckets()
    [cell] = bucket.cells.values()
    assert (cell.requests, cell.failed) == (3, 1)
    now_s += (BUCKETS - 1) * BUCKET_S
    assert len(recorder.buckets()[1]) == 1
    now_s += BUCKET_S
    assert recorder.buckets()[1] == []
