"""The guard: its arithmetic, its guarantee, and that the benchmark's figures are of this very guard."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream_core.manifest.rollout import Thresholds
from slipstream_operator.rollout.analysis.guard import Guard, bets_of
from slipstream_operator.rollout.analysis.metrics import Metric, Rule, rules_of, stricter

from tests.benchmarks import rollback

ALARM_AT = math.log(20_000)


def rule(metric: Metric, value: float) -> Rule:
    names = {Metric.ACCEPTANCE: "acceptance_floor", Metric.PARITY: "parity_loss"}
    [found] = rules_of(Thresholds(**{names[metric]: value}), min_samples=50)
    return found


def feed(values: list[float], rule: Rule, *, alarm_at: float = ALARM_AT) -> Guard:
    guard = Guard()
    for x in values:
        guard.add(x, rule.excess(x), rule.bets, alarm_at=alarm_at, min_samples=rule.min_samples)
    return guard


def test_statistic_is_the_formula() -> None:
    guard = Guard()
    for x in (0.5, 0.4, 0.9):
        guard.add(x, 0.65 - x, (1.0,), alarm_at=99.0, min_samples=1)
    expected = max(math.log(1.15) + math.log(1.25), 0.0) + math.log(0.75)
    assert guard.statistic == pytest.approx(expected)
    assert guard.observed == pytest.approx(1.8 / 3)


def test_good_answers_leave_no_credit_that_bad_ones_would_have_to_use_up() -> None:
    floor = rule(Metric.ACCEPTANCE, 0.65)
    fresh, old = feed([0.3] * 40, floor, alarm_at=99.0), feed([0.95] * 5_000 + [0.3] * 40, floor, alarm_at=99.0)
    assert old.statistic == pytest.approx(fresh.statistic, abs=1e-9)
    assert (old.run_samples, old.observed) == (40, pytest.approx(0.3))


def test_no_alarm_before_the_wanted_samples_and_none_forgotten() -> None:
    floor = rule(Metric.ACCEPTANCE, 0.65)
    assert not feed([0.0] * 49, floor).alarm
    assert feed([0.0] * 50, floor).alarm


def test_alarm_stands_still() -> None:
    floor = rule(Metric.ACCEPTANCE, 0.65)
    guard = feed([0.0] * 50, floor)
    samples, statistic = guard.samples, guard.statistic
    guard.add(1.0, floor.excess(1.0), floor.bets, alarm_at=ALARM_AT, min_samples=50)
    assert (guard.alarm, guard.samples, guard.statistic) == (True, samples, statistic)


@given(limit=st.floats(0.0, 1.0), floor=st.booleans(), x=st.floats(0.0, 1.0))
def test_bets_never_stake_more_than_there_is(limit: float, floor: bool, x: float) -> None:
    excess = limit - x if floor else x - limit
    for bet in bets_of((1.0, 4.0), limit=limit, floor=floor):
        assert 1.0 + bet * excess >= 0.25 - 1e-9


@settings(max_examples=30, deadline=None)
@given(values=st.lists(st.floats(0.0, 1.0), min_size=60, max_size=400), metric=st.sampled_from(list(Metric)[1:3]))
def test_benchmark_and_guard_are_one(values: list[float], metric: Metric) -> None:
    wanted = rule(metric, 0.6)
    alarm_at = 2.0
    found = int(rollback.alarms(np.array([values]), wanted, alarm_at=alarm_at, min_samples=wanted.min_samples)[0])
    one_by_one = next((n for n in range(1, len(values) + 1) if feed(values[:n], wanted, alarm_at=alarm_at).alarm), 0)
    assert found == one_by_one


def test_healthy_classes_stay_and_a_collapse_is_found() -> None:
    random = np.random.default_rng(3)
    floor = rollback.rule_for(Metric.ACCEPTANCE)
    x = rollback.healthy(random, Metric.ACCEPTANCE, 1.05, classes=20, requests=5_000)
    assert not rollback.alarms(x, floor).any()
    accepted, drafted = rollback.acceptances(random, 0.55, 20, 600)
    found = rollback.alarms(np.concatenate([x, accepted / drafted], axis=1), floor)
    median, _, share = rollback.delays(found, 5_000)
    assert share == 1.0
    assert median <= 150


def test_alarms_at_the_threshold_are_as_rare_as_asked_for() -> None:
    random = np.random.default_rng(5)
    x = (random.random((200, 2_000)) < 0.05).astype(float)
    found = rollback.alarms(x, rollback.rule_for(Metric.P95), alarm_at=math.log(1_000), min_samples=1)
    requests = np.where(found > 0, found, 2_000).sum()
    assert requests / max((found > 0).sum(), 1) >= 1_000


def test_stricter_thresholds_are_stricter_everywhere_and_can_still_be_met() -> None:
    asked = Thresholds(
        acceptance_floor=0.98,
        p95_seconds=2.0,
        ttft_p95_seconds=1.0,
        cost_increase=0.1,
        parity_loss=0.02,
        error_rate=0.05,
    )
    strict = stricter(asked, 0.05)
    assert asked.acceptance_floor < strict.acceptance_floor < 1.0
    for name in ("p95_seconds", "ttft_p95_seconds", "cost_increase", "parity_loss", "error_rate"):
        assert getattr(strict, name) == pytest.approx(getattr(asked, name) * 0.95)
    assert stricter(Thresholds(), 0.5) == Thresholds()
