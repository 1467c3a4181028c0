"""One key moves a class for itself alone: neither a rollback nor a promotion rests on the outcomes of one key."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from slipstream_core.manifest.status import SpeculationPolicyStatus
from slipstream_core.observation import Observation
from slipstream_core.types import Arm
from slipstream_operator.rollout.analysis.facts import ClassFacts, Verdict
from slipstream_operator.rollout.analysis.ledger import PolicyLedger

from tests.operator.policy_world import CODE, PAIR_KEY, observation, policy_of, raw_policy

NOW = 1.8e9
LIMITS = {"acceptanceFloor": 0.5, "p95Seconds": 3.0, "errorRate": 0.1, "costIncrease": 0.1, "ttftIncrease": 0.1}
GOOD = {"change": -0.3, "acceptance": 0.7}
BAD = {"change": 1.0, "acceptance": 0.2}


def ledger() -> PolicyLedger:
    return PolicyLedger(PAIR_KEY, policy_of(raw_policy(thresholds=LIMITS)).spec)


def answer(draw: random.Random, key: str, *, change: float, acceptance: float) -> Observation:
    """An answer of either arm; those of the speculative arm take longer by the share `change`."""
    arm = Arm.CONTROL if draw.random() < 0.3 else Arm.SPECULATIVE
    e2e_s = draw.lognormvariate(0.0, 0.2) * (1.0 if arm is Arm.CONTROL else 1.0 + change)
    acceptance = min(max(draw.gauss(acceptance, 0.2), 0.0), 1.0)
    return observation(arm=arm, key=key, time_s=NOW, e2e_s=e2e_s, acceptance=acceptance)


def mixed(
    others: int, hostile: dict[str, float], *, honest: dict[str, float], rounds: int = 400, lies: int = 6
) -> Iterator[Observation]:
    """In each round an answer of each honest key, and `lies` of the hostile one."""
    draw = random.Random(f"{others} {hostile}")
    for _ in range(rounds):
        yield from (answer(draw, f"honest {key}", **honest) for key in range(others))
        yield from (answer(draw, "hostile", **hostile) for _ in range(lies))


def facts_of(books: PolicyLedger) -> ClassFacts:
    return books.facts(NOW)[CODE]


def failed(facts: ClassFacts) -> set[str]:
    """The verdicts that would roll the class back."""
    found = {str(guard.metric) for guard in facts.guards if guard.verdict is Verdict.FAIL}
    losses = {"loss": facts.loss, "ttft_loss": facts.ttft_loss}
    return found | {name for name, loss in losses.items() if loss is not None}


@pytest.mark.parametrize("others", [1, 2, 5])
def test_no_key_rolls_a_class_back_for_others(others: int) -> None:
    books, pooled = ledger(), ledger()
    for index, seen in enumerate(mixed(others, BAD, honest=GOOD, rounds=200)):
        books.record(seen)
        pooled.record(observation_of_nobody(seen))
        assert index % 5 or failed(facts_of(books)) == set()
    assert failed(facts_of(pooled)) >= {"acceptanceFloor", "costIncrease", "loss", "ttft_loss"}


def observation_of_nobody(seen: Observation) -> Observation:
    """`seen`, as if all callers were one."""
    more = {name: getattr(seen, name) for name in ("e2e_s", "accepted", "ttft_s", "priced_s")}
    return observation(arm=seen.arm, time_s=seen.time_s, **more)


@pytest.mark.parametrize("others", [1, 2, 5])
def test_no_key_promotes_a_class_for_others(others: int) -> None:
    books, pooled = ledger(), ledger()
    for seen in mixed(others, GOOD, honest={"change": 0.0, "acceptance": 0.7}, rounds=1_000):
        books.record(seen)
        pooled.record(observation_of_nobody(seen))
    assert facts_of(books).gain.verdict is Verdict.FAIL
    assert facts_of(pooled).gain.verdict is Verdict.PASS


@pytest.mark.parametrize("keys", [1, 2, 3, 6])
def test_what_holds_for_all_keys_is_found(keys: int) -> None:
    draw, books = random.Random(keys), ledger()
    for _ in range(600 // keys):
        for key in range(keys):
            books.record(answer(draw, f"key {key}", change=0.5, acceptance=0.7))
    assert "loss" in failed(facts_of(books))
    good = ledger()
    for _ in range(1_500 // keys):
        for key in range(keys):
            good.record(answer(draw, f"key {key}", **GOOD))
    assert facts_of(good).gain.verdict is Verdict.PASS
    assert failed(facts_of(good)) == set()


def test_failures_of_one_key_are_its_own_and_those_of_all_roll_back() -> None:
    def fail(key: str) -> Observation:
        return observation(time_s=NOW, key=key, status="upstream_failed")

    draw, books = random.Random(1), ledger()
    for _ in range(60):
        books.record(answer(draw, "honest", **GOOD))
        for _ in range(5):
            books.record(fail("hostile"))
    assert facts_of(books).errors.verdict is not Verdict.FAIL
    assert "errorRate" not in failed(facts_of(books))
    [disputed] = [guard for guard in facts_of(books).guards if guard.verdict is Verdict.DISPUTED]
    assert disputed.metric == "errorRate"
    for _ in range(200):
        books.record(fail("honest"))
    assert facts_of(books).errors.verdict is Verdict.FAIL
    assert "errorRate" in failed(facts_of(books))


def test_an_outage_of_few_requests_of_a_second_key_rolls_back() -> None:
    """Without the first key there are too few requests for a verdict, and they fail as well."""
    draw, books = random.Random(1), ledger()
    for index in range(100):
        key = "visitor" if index % 20 == 0 else "tenant"
        books.record(answer(draw, key, **GOOD))
        books.record(observation(time_s=NOW, key=key, status="upstream_failed"))
    assert facts_of(books).errors.verdict is Verdict.FAIL


def test_a_failure_or_two_of_a_second_key_are_no_outage() -> None:
    books = ledger()
    for index in range(100):
        if index % 5 == 0:
            status = "upstream_failed" if index in (50, 60) else "ok"
            books.record(observation(time_s=NOW, key="honest", status=status))
        books.record(observation(time_s=NOW, key="hostile", status="upstream_failed"))
        assert facts_of(books).errors.verdict is not Verdict.FAIL
        assert failed(facts_of(books)) == set()


def test_a_key_of_few_requests_has_no_say() -> None:
    """Otherwise a key that sends one request would prevent every rollback."""
    draw, books = random.Random(1), ledger()
    for index in range(400):
        books.record(answer(draw, "tenant", **BAD))
        if index < 10:
            books.record(answer(draw, "visitor", **GOOD))
    assert "loss" in failed(facts_of(books))


def test_no_false_alarm_whatever_one_key_sends() -> None:
    """The honest keys' speculation changes nothing."""
    for seed in range(10):
        draw, books = random.Random(seed), ledger()
        for _ in range(500):
            for key in range(3):
                books.record(answer(draw, f"honest {key}", change=0.0, acceptance=0.7))
            books.record(answer(draw, "hostile", change=draw.choice([0.5, 3.0]), acceptance=draw.random() / 3))
        assert failed(facts_of(books)) == set()


def test_a_restart_keeps_the_groups() -> None:
    books, draw = ledger(), random.Random(1)
    for index in range(300):
        books.record(answer(draw, f"key {index % 5}", **GOOD))
    text = books.checkpoint(SpeculationPolicyStatus())
    restored = ledger()
    restored.restore(text)
    for index in range(300):
        seen = answer(draw, f"key {index % 7}", **BAD)
        books.record(seen)
        restored.record(seen)
    assert restored.facts(NOW) == books.facts(NOW)
    assert restored.checkpoint(SpeculationPolicyStatus()) == books.checkpoint(SpeculationPolicyStatus())
