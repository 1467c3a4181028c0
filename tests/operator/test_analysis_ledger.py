"""The ledger: what counts, what does not, how much it holds and what it costs."""

from __future__ import annotations

import math
import random
import time

import numpy as np
import pytest
from slipstream_core.manifest.status import ClassStatus, Phase, SpeculationPolicyStatus
from slipstream_core.redis.inbox import Position
from slipstream_core.types import Arm, LengthBin, TaskType
from slipstream_operator.rollout.analysis.checkpoint import MAX_CHARS, MAX_WRITTEN_CHARS, sealed_standings
from slipstream_operator.rollout.analysis.facts import Verdict
from slipstream_operator.rollout.analysis.ledger import PolicyLedger
from slipstream_operator.rollout.analysis.metrics import Metric

from tests.benchmarks import rollback_paired
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
        {"priced_s": math.nan},
        {"priced_s": -1.0},
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
    assert guard(books, Metric.COST).verdict is Verdict.NO_DATA
    for _ in range(10):
        books.record(observation(arm=Arm.CONTROL, time_s=NOW, price_per_gpu_hour=3.6))
        for _ in range(10):
            books.record(observation(time_s=NOW, price_per_gpu_hour=360.0))
    assert guard(books, Metric.COST).verdict is Verdict.FAIL


@pytest.mark.parametrize("unknown", ["price_per_gpu_hour", "priced_s"])
@pytest.mark.parametrize(("answers", "verdict"), [(149, Verdict.NO_DATA), (150, Verdict.NOT_APPLICABLE)])
def test_cost_without_a_price_or_a_time_is_no_data_and_then_no_question(
    answers: int, verdict: Verdict, unknown: str
) -> None:
    books = ledger(thresholds={"costIncrease": 0.0})
    for arm in (Arm.CONTROL, Arm.SPECULATIVE):
        for _ in range(answers):
            books.record(observation(arm=arm, time_s=NOW, **{unknown: None}))
    assert guard(books, Metric.COST).verdict is verdict


@pytest.mark.parametrize("per_window", [30, 100])
def test_error_rate_below_its_limit_takes_no_class_back_however_long_it_lasts(per_window: int) -> None:
    for seed in range(3):
        draw, books = random.Random(seed), ledger(thresholds={})
        for index in range(4_000):
            now_s, failed = NOW + index * 600 / per_window, draw.random() < 0.02
            seen = observation(time_s=now_s, e2e_s=0.5, status="upstream_failed" if failed else "ok")
            books.record(seen, now_s=now_s)
            if failed:
                assert books.facts(now_s)[CODE].errors.verdict is not Verdict.FAIL
        found = guard(books, Metric.ERROR_RATE)
        assert (found.verdict, found.seen) == (Verdict.PASS, 4_000)


def test_cost_is_judged_as_the_benchmark_simulates_it() -> None:
    books = PolicyLedger(PAIR_KEY, policy_of(raw_policy(thresholds={"costIncrease": 0.05}, analysis={})).spec)
    found = rollback_paired.trace(np.random.default_rng(2), loss=0.1, share=0.2, requests=3_000)
    costs = rollback_paired.costs_of(found)
    for seconds, tokens, control in zip(*(column.tolist() for column in found), strict=True):
        arm = Arm.CONTROL if control else Arm.SPECULATIVE
        seen = observation(arm=arm, time_s=NOW, priced_s=seconds, output_tokens=int(tokens), price_per_gpu_hour=3_600.0)
        books.record(seen)
    told = guard(books, Metric.COST)
    assert told.seen == min(costs.began.speculative, costs.began.control) > 300
    assert (1.0 + told.observed) / 1.05 - 1.0 == pytest.approx(costs.began.change(costs.began.difference))
    assert (told.verdict is Verdict.FAIL) is (costs.found_loss(99.0, margin=rollback_paired.MARGIN) is not None)


def test_answers_that_are_priced_in_two_ways_are_never_compared() -> None:
    """Only a part of the servers tells the engine's time: the others' answers have no price."""
    books = ledger(thresholds={"costIncrease": 0.05})
    for index in range(2_000):
        arm, told = (Arm.CONTROL, Arm.SPECULATIVE)[index % 10 > 0], index % 3 == 0
        books.record(observation(arm=arm, time_s=NOW, e2e_s=1.0, priced_s=0.1 if told else None))
    found = guard(books, Metric.COST)
    assert (found.verdict, found.observed) == (Verdict.PASS, pytest.approx(0.0, abs=1e-6))
    assert found.seen < 80


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


def crowded(draw: random.Random) -> PolicyLedger:
    """Every class, with times of every order of magnitude, at every part of the window."""
    books = ledger(thresholds=ALL)
    for task in TaskType:
        for length in LengthBin:
            for index in range(1_200):
                arm = Arm.CONTROL if index % 2 else Arm.SPECULATIVE
                seconds = math.exp(draw.uniform(math.log(1e-5), math.log(9e4)))
                ttft = max(seconds * draw.random(), 1e-6)
                books.record(observation(f"{task}/{length}", arm, time_s=NOW + index * 0.6, e2e_s=seconds, ttft_s=ttft))
    return books


def test_a_checkpoint_is_never_longer_than_an_api_server_takes() -> None:
    draw = random.Random(1)
    books = crowded(draw)
    phases = {"phase": Phase.PROMOTED, "share": 0.5, "step": 1, "since": "2026-01-01T00:00:00Z"}
    status = SpeculationPolicyStatus(
        classes=tuple(ClassStatus(name=name, **phases) for name in books.facts(NOW)), spec_hash="f" * 16
    )
    names = [f"{draw.getrandbits(64):016x}" for _ in range(20_000)]
    for known in (128, 8_000, 20_000):
        books.passed(Position(entry="1234-0", numbers={name: draw.getrandbits(50) for name in names[:known]}))
        text = books.checkpoint(status)
        assert len(text) <= MAX_WRITTEN_CHARS < MAX_CHARS
        assert len(sealed_standings(text)) == 33
        restored = ledger(thresholds=ALL)
        restored.restore(text)
        assert restored.position.entry == "1234-0"
        assert (restored.position == books.position) is (known <= 8_000)
        assert (restored.facts(NOW + 720)[CODE].speculative.samples > 0) is (known == 128)
        for name, facts in books.facts(NOW + 720).items():
            assert restored.facts(NOW + 720)[name].guards == facts.guards


def test_an_outcome_costs_microseconds() -> None:
    books, draw = ledger(thresholds=ALL), random.Random(1)
    seen = [
        observation(
            arm=Arm.CONTROL if index % 2 else Arm.SPECULATIVE, time_s=NOW + index / 50, e2e_s=draw.random() + 0.1
        )
        for index in range(5_000)
    ]
    costs_s = []
    for begin in range(0, len(seen), 500):
        begin_s = time.thread_time()
        for one in seen[begin : begin + 500]:
            books.record(one, now_s=NOW + 1_000)
        costs_s.append((time.thread_time() - begin_s) / 500)
    # Others on the machine make some slices dear, not all; the later ones would tell of a cost that grows.
    assert min(costs_s[5:]) < 100e-6
