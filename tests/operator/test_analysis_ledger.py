"""The ledger: what counts, what does not, how much it holds and what it costs."""

from __future__ import annotations

import math
import random
import time

import numpy as np
import pytest
from slipstream_gateway.manifest.status import SpeculationPolicyStatus
from slipstream_gateway.stores.position import Position
from slipstream_gateway.types import Arm, LengthBin, TaskType
from slipstream_operator.analysis import Metric, PolicyLedger, Verdict
from slipstream_operator.analysis.checkpoint import MAX_CHARS
from slipstream_operator.analysis.guard import Guard

from tests.benchmarks import rollback
from tests.operator.policy_world import CODE, PAIR_KEY, observation, policy_of, raw_policy

NOW = 1.8e9
ALL = {
    "acceptanceFloor": 0.65,
    "p95Seconds": 2.0,
    "ttftP95Seconds": 1.0,
    "costIncrease": 0.05,
    "parityLoss": 0.02,
}


def ledger(**spec: object) -> PolicyLedger:
    return PolicyLedger(PAIR_KEY, policy_of(raw_policy(**spec)).spec)


def guard(books: PolicyLedger, metric: Metric, name: str = CODE) -> object:
    return next(one for one in books.facts(NOW)[name].guards if one.metric is metric)


@pytest.mark.parametrize(
    "broken",
    [
        {"request_class": "poetry/long"},
        {"request_class": "x" * 1_000_000},
        {"time_s": math.nan},
        {"time_s": -1.0},
        {"time_s": math.inf},
        {"e2e_s": math.nan},
        {"e2e_s": -1.0},
        {"accepted": 2_000},
        {"output_tokens": 0},
        {"ttft_s": 5.0, "e2e_s": 1.0},
        {"load": math.nan},
        {"price_per_gpu_hour": -3.0},
        {"status": "parity", "parity": "maybe"},
    ],
)
def test_impossible_outcomes_leave_no_trace(broken: dict[str, object]) -> None:
    books = ledger(thresholds=ALL)
    books.record(observation(**{"time_s": NOW, **broken}), now_s=NOW)
    assert books.facts(NOW) == {}


def test_classes_are_bounded_whatever_is_sent() -> None:
    books = ledger()
    for index in range(1_000):
        books.record(observation(f"code/{index}", time_s=NOW))
    for task in TaskType:
        for length in LengthBin:
            books.record(observation(f"{task}/{length}", time_s=NOW))
    assert len(books.facts(NOW)) == 33


def test_answers_without_drafts_say_nothing_of_acceptance() -> None:
    books = ledger()
    for _ in range(100):
        books.record(observation(time_s=NOW, drafted=0, accepted=0))
    assert guard(books, Metric.ACCEPTANCE).verdict is Verdict.NO_DATA
    assert guard(books, Metric.ACCEPTANCE).seen == 0


def test_cost_is_not_judged_before_the_controls_is_known() -> None:
    books = ledger(thresholds={"costIncrease": 0.0})
    for _ in range(300):
        books.record(observation(time_s=NOW, price_per_gpu_hour=360.0))
    assert guard(books, Metric.COST).seen == 0
    for _ in range(50):
        books.record(observation(arm=Arm.CONTROL, time_s=NOW, price_per_gpu_hour=3.6))
    for _ in range(100):
        books.record(observation(time_s=NOW, price_per_gpu_hour=360.0))
    assert guard(books, Metric.COST).verdict is Verdict.FAIL


def test_cost_of_unpriced_servers_is_no_data() -> None:
    books = ledger(thresholds={"costIncrease": 0.0})
    for arm in (Arm.CONTROL, Arm.SPECULATIVE):
        for _ in range(200):
            books.record(observation(arm=arm, time_s=NOW, price_per_gpu_hour=None))
    assert guard(books, Metric.COST).verdict is Verdict.NO_DATA


def test_cost_is_judged_by_the_formula_that_the_benchmark_simulates() -> None:
    books = PolicyLedger(PAIR_KEY, policy_of(raw_policy(thresholds={"costIncrease": 0.05}, analysis={})).spec)
    draw = np.random.default_rng(2)
    costs, held = draw.lognormal(sigma=0.5, size=(1, 1_500)), draw.random((1, 1_500)) < 0.5
    for cost, control in zip(costs[0].tolist(), held[0].tolist(), strict=True):
        arm = Arm.CONTROL if control else Arm.SPECULATIVE
        books.record(observation(arm=arm, time_s=NOW, e2e_s=cost, price_per_gpu_hour=3_600.0))
    x, rule, simulated = rollback.relative_costs(costs, held)[0], rollback.rule_for(Metric.COST), Guard()
    for value in x[~np.isnan(x)].tolist():
        simulated.add(value, rule.excess(value), rule.bets, alarm_at=99.0, min_samples=200)
    found = guard(books, Metric.COST)
    assert found.seen == simulated.samples > 300
    assert found.statistic == pytest.approx(simulated.statistic, abs=1e-6)


def test_cost_that_equals_the_controls_raises_no_alarm_whatever_the_draws_of_the_control() -> None:
    alarms = 0
    for seed in range(10):
        draw, books = random.Random(seed), ledger(thresholds={"costIncrease": 0.0})
        for index in range(6_000):
            arm = Arm.CONTROL if index % 2 else Arm.SPECULATIVE
            books.record(observation(arm=arm, time_s=NOW, e2e_s=draw.lognormvariate(0.0, 0.5)))
        alarms += guard(books, Metric.COST).verdict is Verdict.FAIL
    assert alarms == 0


def test_requests_from_before_the_policy_do_not_count() -> None:
    books = PolicyLedger(PAIR_KEY, policy_of(raw_policy()).spec, begun_s=NOW)
    books.record(observation(time_s=NOW - 1.0))
    assert books.facts(NOW) == {}


def test_checkpoint_of_another_pair_is_left_aside() -> None:
    books = ledger()
    books.record(observation(time_s=NOW))
    other = PolicyLedger("team/other", None)
    other.restore(books.checkpoint(SpeculationPolicyStatus()))
    assert other.facts(NOW) == {}


def test_full_ledger_fits_into_a_status_and_restores_to_the_same() -> None:
    books, draw = ledger(thresholds=ALL), random.Random(1)
    for task in TaskType:
        for length in LengthBin:
            for index in range(240):
                arm = Arm.CONTROL if index % 2 else Arm.SPECULATIVE
                seconds = draw.lognormvariate(0.0, 0.7)
                books.record(observation(f"{task}/{length}", arm, time_s=NOW + index * 2.5, e2e_s=seconds))
    books.passed(Position(entry="1234-0", numbers={f"{index:016x}": index * 1_000 for index in range(128)}))
    text = books.checkpoint(SpeculationPolicyStatus())
    assert len(text) < MAX_CHARS
    restored = ledger(thresholds=ALL)
    restored.restore(text)
    assert restored.facts(NOW + 600) == books.facts(NOW + 600)
    assert restored.position == books.position
    assert restored.checkpoint(SpeculationPolicyStatus()) == text


def test_an_outcome_costs_microseconds() -> None:
    books, draw = ledger(thresholds=ALL), random.Random(1)
    seen = [
        observation(
            arm=Arm.CONTROL if index % 2 else Arm.SPECULATIVE, time_s=NOW + index / 50, e2e_s=draw.random() + 0.1
        )
        for index in range(5_000)
    ]
    begin = time.thread_time()
    for one in seen:
        books.record(one, now_s=NOW + 1_000)
    assert (time.thread_time() - begin) / len(seen) < 100e-6
