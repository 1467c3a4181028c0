"""The verdict's rule: thresholds, intervals that must support it, and which mode is judged."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream_core.errors import CommandError
from slipstream_tools.bench.cases import Prices
from slipstream_tools.bench.summarize import summarize
from slipstream_tools.bench.summary import Comparison, Interval, Summary, Thresholds
from slipstream_tools.bench.verdict import check_expectation, judge, unmet

from tests.gateway.bench.rows import pairs, results, row

THRESHOLDS = Thresholds()


def interval(low: float, estimate: float, high: float) -> Interval:
    return Interval(estimate=estimate, low=low, high=high)


def comparison(**fields: Any) -> Comparison:
    values: dict[str, Any] = dict.fromkeys(Comparison.__struct_fields__)
    return Comparison(**{**values, "pairs": 100, "requests": 100, "parity_compared": 0, "parity_equal": 0, **fields})


@pytest.mark.parametrize(
    ("fields", "verdict", "reason"),
    [
        ({"p95_reduction": interval(0.15, 0.3, 0.4)}, "speculate", "the p95 falls by 30.0% (15.0% to 40.0%)"),
        (
            {"p95_reduction": interval(0.15, 0.3, 0.4), "requests": 29},
            "not enough data",
            "29 requests were compared, 30",
        ),
        ({"p95_reduction": interval(0.15, 0.3, 0.4), "requests": 1}, "not enough data", "1 request was compared, 30"),
        ({"p95_reduction": None}, "not enough data", "100 requests"),
        ({"p95_reduction": interval(-0.1, 0.3, 0.4)}, "not enough data", "includes an increase"),
        ({"p95_reduction": interval(0.05, 0.15, 0.25)}, "not enough data", "which the interval spans"),
        ({"p95_reduction": interval(0.05, 0.1, 0.15)}, "do not", "20% is required"),
        ({"p95_reduction": interval(-0.3, -0.2, -0.1)}, "do not", "the p95 rises by 20.0% (10.0% to 30.0%), a fall of"),
        ({"quality": interval(-0.05, 0.0, 0.05)}, "speculate", "passed checks falls by 0.0%"),
        ({"quality": interval(-0.05, -0.02, 0.01)}, "not enough data", "passed checks falls by 2.0%"),
        ({"quality": interval(-0.05, -0.03, -0.01)}, "do not", "passed checks falls by 3.0% (1.0% to 5.0%)"),
        ({"cost_increase": interval(0.01, 0.04, 0.08)}, "speculate", "the cost rises by 4.0%"),
        ({"cost_increase": interval(0.03, 0.06, 0.08)}, "not enough data", "the cost rises by 6.0%"),
        ({"cost_increase": interval(0.06, 0.07, 0.08)}, "do not", "at most 5% is allowed"),
    ],
)
def test_each_threshold_decides_by_its_interval(fields: dict[str, Any], verdict: str, reason: str) -> None:
    found, why = judge(comparison(**{"p95_reduction": interval(0.25, 0.3, 0.35), **fields}), THRESHOLDS)
    assert found == verdict
    assert reason in why


INTERVALS = st.lists(st.floats(-1, 0.9), min_size=3, max_size=3).map(lambda values: interval(*sorted(values)))


@settings(deadline=None, max_examples=60)
@given(reduction=INTERVALS, quality=INTERVALS, cost=INTERVALS, requests=st.integers(0, 60))
def test_a_verdict_is_supported_by_every_interval(
    reduction: Interval, quality: Interval, cost: Interval, requests: int
) -> None:
    measured = comparison(p95_reduction=reduction, quality=quality, cost_increase=cost, requests=requests)
    verdict, reason = judge(measured, THRESHOLDS)
    assert reason
    if verdict == "speculate":
        assert requests >= THRESHOLDS.min_samples
        assert reduction.estimate >= THRESHOLDS.p95_reduction
        assert reduction.low > 0
        assert quality.estimate >= 0
        assert cost.estimate <= THRESHOLDS.cost_increase
    if verdict == "do not":
        assert requests >= THRESHOLDS.min_samples
        assert reduction.high < THRESHOLDS.p95_reduction or quality.high < 0 or cost.low > THRESHOLDS.cost_increase


@settings(deadline=None, max_examples=60)
@given(reduction=INTERVALS, cost=INTERVALS, requests=st.integers(30, 60), lower=st.floats(0, 0.2))
def test_a_lower_threshold_never_turns_speculate_away(
    reduction: Interval, cost: Interval, requests: int, lower: float
) -> None:
    measured = comparison(p95_reduction=reduction, cost_increase=cost, requests=requests)
    if judge(measured, THRESHOLDS)[0] == "speculate":
        assert judge(measured, Thresholds(p95_reduction=lower))[0] == "speculate"


@pytest.fixture(scope="module")
def summary() -> Summary:
    """Two classes: `good` gets twice as fast, `bad` a third slower; routed is right in one and wrong in the other."""
    times = [(1.0 + index / 100, 0.5 + index / 200) for index in range(40)]
    rows = pairs(times, label="good")
    rows += [row(40 + one.index, one.mode, e2e_s=(1.5 if one.mode == "speculative" else 1.0), label="bad")
             for one in pairs([(1.0, 1.5)] * 40)]  # fmt: skip
    rows += [row(one.index, "routed", e2e_s=one.e2e_s, label=one.label) for one in rows if one.mode == "speculative"]
    return summarize(results(rows), thresholds=THRESHOLDS, prices=Prices())


def test_each_class_gets_the_verdict_of_its_own_differences(summary: Summary) -> None:
    verdicts = {one.request_class: (one.verdict, one.mode) for one in summary.verdicts}
    assert verdicts == {"good": ("speculate", "speculative"), "bad": ("do not", "speculative")}


@pytest.mark.parametrize(
    ("expectation", "missed"),
    [
        ("good=speculate", None),
        ("bad=do-not", None),
        ("bad=speculate", "bad=speculate: at concurrency 1 it is 'do not'"),
        ("other=speculate", "the class has no verdict"),
        ("not-harmed", "routed takes 50.0% longer than plain in the class bad"),
        ("policy", "100% of the class bad speculate at concurrency 1, and should not"),
    ],
)
def test_what_was_expected_is_held_against_the_summary(summary: Summary, expectation: str, missed: str | None) -> None:
    found = unmet(summary, [check_expectation(expectation)])
    assert [missed in line for line in found] == [True] if missed else found == []


def test_expectations_that_do_not_exist_are_refused() -> None:
    with pytest.raises(CommandError, match="--expect is not-harmed, policy or CLASS=VERDICT"):
        check_expectation("good=maybe")


def test_the_best_draft_length_is_judged() -> None:
    times = {"plain": 1.0, "speculative:2": 0.7, "speculative:4": 0.4, "speculative:8": 1.2}
    rows = [row(index, mode, e2e_s=seconds) for index in range(30) for mode, seconds in times.items()]
    [verdict] = summarize(results(rows), thresholds=THRESHOLDS, prices=Prices()).verdicts
    assert (verdict.verdict, verdict.mode, verdict.draft_length) == ("speculate", "speculative:4", 4)


def test_without_plain_there_is_no_verdict() -> None:
    summary = summarize(results([row(0, "speculative")]), thresholds=THRESHOLDS, prices=Prices())
    assert summary.verdicts == ()
    assert any("the mode plain was not measured" in warning for warning in summary.warnings)


def test_rounds_are_no_further_requests() -> None:
    times = {"plain": 1.0, "speculative": 0.4}
    rows = [
        row(index, mode, round=turn, e2e_s=seconds)
        for turn in range(40)
        for index in range(2)
        for mode, seconds in times.items()
    ]
    summary = summarize(results(rows, rounds=40), thresholds=THRESHOLDS, prices=Prices())
    [verdict] = summary.verdicts
    assert verdict.verdict == "not enough data"
    assert "2 requests were compared, 30 are required" in verdict.reason
