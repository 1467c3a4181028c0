"""The comparison of two revisions: what equal, slower, failing and lying ones look like."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from slipstream_core.manifest.serving import Canary
from slipstream_core.observation import PARITY, Observation, Subject
from slipstream_core.types import Arm, Reason
from slipstream_operator.rollout.analysis.facts import Verdict
from slipstream_operator.rollout.analysis.revisions import COLD_ANSWERS, RevisionFacts, RevisionLedger

BEGUN_S = 1_000_000.0
CANARY = Canary(min_samples=100, max_slowdown=0.1)
CLASSES = ("summarization/long", "extraction/short")


def answer(
    number: int, seconds: float, *, canary: bool, request_class: str = CLASSES[0], **more: object
) -> Observation:
    subject = Subject(pair="prod/acme", cold_class=request_class, temperature=0)
    fields = {
        "subject": subject, "request_class": request_class, "arm": Arm.PLAIN, "reason": Reason.BREAK_EVEN,
        "draft_length": 0, "pool": "prod/acme", "status": "ok", "prompt_tokens": 10, "output_tokens": 20, "drafted": 0,
        "accepted": 0, "rejections": 0, "steps": 20, "ttft_s": None, "e2e_s": seconds, "load": 1.0,
        "batch_draft_length": 0.0, "price_per_gpu_hour": None, "time_s": BEGUN_S + 100.0 + number, "revision": "new",
        "canary": canary,
    }  # fmt: skip
    return Observation(**{**fields, **more})  # type: ignore[arg-type]


def ledger() -> RevisionLedger:
    return RevisionLedger(pair="prod/acme", revision="new", canary=CANARY, begun_s=BEGUN_S)


def record(found: RevisionLedger, *observations: Observation) -> None:
    for seen in observations:
        found.record(seen, now_s=BEGUN_S + 1e6)


def traffic(luck: random.Random, count: int, *, slower: float = 1.0, share: float = 0.3) -> list[Observation]:
    """Answers of two classes whose times differ by ten, in busy and quiet hours."""
    made = []
    for number in range(count):
        canary, request_class = luck.random() < share, luck.choice(CLASSES)
        busy = 3.0 if number % 200 < 100 else 1.0
        seconds = busy * (5.0 if request_class == CLASSES[0] else 0.5) * luck.lognormvariate(0.0, 0.3)
        made.append(answer(number, seconds * (slower if canary else 1.0), canary=canary, request_class=request_class))
    return made


def facts_of(observations: list[Observation]) -> RevisionFacts:
    found = ledger()
    record(found, *observations)
    return found.facts()


def test_an_equal_revision_is_shown_to_be_no_slower() -> None:
    facts = facts_of(traffic(random.Random(1), 3000))
    assert facts.change is not None
    assert facts.bound is not None
    assert abs(facts.change) < 0.05
    assert facts.change < facts.bound <= CANARY.max_slowdown
    assert (facts.slow, facts.errors) == (None, Verdict.PASS)
    assert facts.samples > 800
    assert facts.serving_samples > 1900


@pytest.mark.parametrize("seed", range(5))
def test_a_slower_revision_is_found_and_never_shown_to_be_fast(seed: int) -> None:
    found = ledger()
    for count, seen in enumerate(traffic(random.Random(seed), 3000, slower=1.4), start=1):
        record(found, seen)
        if count % 50 == 0:
            facts = found.facts()
            assert facts.bound is None or facts.bound > CANARY.max_slowdown
            if facts.slow is not None:
                assert facts.slow.name in CLASSES
                assert facts.slow.change > CANARY.max_slowdown
                return
    pytest.fail(f"3,000 answers did not show it: {found.facts()}")


def test_false_alarms_are_rare() -> None:
    """An equal revision, looked at again and again over a long comparison."""
    alarms = 0
    for seed in range(40):
        found = ledger()
        for count, seen in enumerate(traffic(random.Random(seed), 2000), start=1):
            record(found, seen)
            if count % 100 == 0 and found.facts().slow is not None:
                alarms += 1
                break
    assert alarms <= 2


def test_the_times_of_a_cold_server_do_not_count() -> None:
    """Its first answers take ten times as long; an answer that began beside them does not count, either."""
    observations = traffic(random.Random(4), 2000)
    last = [number for number, seen in enumerate(observations) if seen.canary][COLD_ANSWERS - 1]
    found = ledger()
    for seen in observations[: last + 1]:
        record(found, answer_like(seen, seen.e2e_s * 10.0) if seen.canary else seen)
    record(found, answer(last + 1, 2.0, canary=False))
    assert found.facts().samples + found.facts().serving_samples == 0
    record(found, *observations[last + 1 :])
    facts = found.facts()
    assert facts.slow is None
    assert facts.change is not None
    assert abs(facts.change) < 0.05


def test_a_fast_clock_of_a_gateway_does_not_end_the_comparison() -> None:
    found = ledger()
    record(found, *(answer(number, 1.0, canary=True, time_s=9e10) for number in range(COLD_ANSWERS)))
    for number in range(100):
        seen = answer(number, 1.0, canary=number % 2 == 0, time_s=BEGUN_S + 1e6 + 10.0 + number)
        found.record(seen, now_s=seen.time_s)
    assert found.facts().samples == found.facts().serving_samples == 50


@pytest.mark.parametrize("slower", [1.04, 1.08])
def test_a_revision_within_the_limit_is_not_called_slow(slower: float) -> None:
    alarms = 0
    for seed in range(20):
        found = ledger()
        for count, seen in enumerate(traffic(random.Random(seed), 4000, slower=slower), start=1):
            record(found, seen)
            if count % 100 == 0 and found.facts().slow is not None:
                alarms += 1
                break
    assert alarms <= 1


def test_a_slow_class_is_found_although_all_classes_together_are_faster() -> None:
    luck, observations = random.Random(3), []
    for seen in traffic(luck, 3000):
        factor = 1.6 if seen.request_class == CLASSES[1] else 0.4
        observations.append(answer_like(seen, seen.e2e_s * (factor if seen.canary else 1.0)))
    slow = facts_of(observations).slow
    assert slow is not None
    assert slow.name == CLASSES[1]


def answer_like(seen: Observation, seconds: float) -> Observation:
    number = int(seen.time_s - BEGUN_S - 100.0)
    return answer(number, seconds, canary=seen.canary, request_class=seen.request_class)


def failing(count: int, share: float, *, canary: bool, seed: int = 1) -> list[Observation]:
    luck = random.Random(seed)
    return [
        answer(number, 1.0, canary=canary, status="upstream_failed" if luck.random() < share else "ok")
        for number in range(count)
    ]


def test_a_failing_revision_is_blamed_where_the_serving_one_does_not_fail() -> None:
    found = ledger()
    for one, other in zip(failing(100, 0.5, canary=True), failing(100, 0.0, canary=False), strict=True):
        record(found, one, other)
    assert found.facts().errors is Verdict.FAIL


def test_an_overloaded_revision_fails() -> None:
    found = ledger()
    for number in range(100):
        record(found, answer(number, 1.0, canary=True, status="overloaded"), answer(number, 1.0, canary=False))
    assert found.facts().errors is Verdict.FAIL


def test_failures_of_both_revisions_are_nobodys_fault() -> None:
    found = ledger()
    for one, other in zip(failing(300, 0.5, canary=True), failing(300, 0.5, canary=False, seed=2), strict=True):
        record(found, one, other)
    assert found.facts().errors is Verdict.SHARED


def test_differing_answers_are_counted_and_few_replays_prove_nothing() -> None:
    def replays(result: str, count: int) -> Verdict:
        found = ledger()
        record(found, *(answer(n, 1.0, canary=True, status=PARITY, parity=result) for n in range(count)))
        return found.facts().parity

    assert replays("match", 5) is Verdict.NO_DATA
    assert replays("match", 10) is Verdict.PASS
    assert replays("mismatch", 10) is not Verdict.PASS
    assert replays("mismatch", 60) is Verdict.FAIL


def test_without_replays_for_long_enough_parity_does_not_apply() -> None:
    found = ledger()
    enough = COLD_ANSWERS + 3 * CANARY.min_samples
    record(found, *(answer(number, 1.0, canary=True) for number in range(enough)))
    assert found.facts().parity is Verdict.NOT_APPLICABLE
    record(found, answer(0, 1.0, canary=True, status=PARITY, parity="match"))
    assert found.facts().parity is Verdict.NO_DATA
    record(found, *(answer(enough + number, 1.0, canary=True) for number in range(7 * CANARY.min_samples)))
    assert found.facts().parity is Verdict.NOT_APPLICABLE


def test_replays_that_do_not_take_place_are_no_reason_to_do_without() -> None:
    found = ledger()
    record(found, *(answer(number, 1.0, canary=True) for number in range(COLD_ANSWERS + 10 * CANARY.min_samples)))
    assert found.facts().parity is Verdict.NOT_APPLICABLE
    record(found, *(answer(number, 1.0, canary=True, status=PARITY, parity="missed") for number in range(10)))
    assert (found.facts().parity, found.facts().replays) == (Verdict.NO_DATA, 0)
    record(found, *(answer(number, 1.0, canary=True, status=PARITY, parity="match") for number in range(30)))
    assert found.facts().parity is Verdict.PASS


@pytest.mark.parametrize(
    "other",
    [
        answer(0, 1.0, canary=True, revision="older"),
        answer(0, 1.0, canary=False, revision=""),
        answer(0, 1e9, canary=True),
        answer(0, 1.0, canary=True, time_s=BEGUN_S + 0.5),
    ],
    ids=["of another revision", "outside the comparison", "impossible", "from before it began"],
)
def test_other_outcomes_do_not_count(other: Observation) -> None:
    found = ledger()
    record(found, other)
    assert found.facts().samples + found.facts().serving_samples == 0


def lengths(luck: random.Random, count: int, new: Callable[[int], int]) -> list[Observation]:
    """Answers of the length that serving ones have; `new` changes that of the new revision. Their times follow."""
    made = []
    for number in range(count):
        canary, request_class = luck.random() < 0.3, luck.choice(CLASSES)
        usual = round((200.0 if request_class == CLASSES[0] else 20.0) * luck.lognormvariate(0.0, 0.6)) + 1
        tokens = new(usual) if canary else usual
        seconds = 0.05 + 0.01 * tokens * luck.lognormvariate(0.0, 0.2)
        made.append(answer(number, seconds, canary=canary, request_class=request_class, output_tokens=tokens))
    return made


@pytest.mark.parametrize(
    "new", [lambda tokens: 2, lambda tokens: tokens // 2 + 1, lambda tokens: 256], ids=["garbage", "cut", "endless"]
)
def test_answers_of_another_length_are_shown(new: Callable[[int], int]) -> None:
    facts = facts_of(lengths(random.Random(3), 1500, new))
    assert facts.length is not None
    assert facts.length_change is not None
    assert abs(facts.length_change) > CANARY.max_length_change


def test_equal_lengths_are_never_shown_to_differ() -> None:
    for seed in range(20):
        found, observations = ledger(), lengths(random.Random(seed), 3000, lambda tokens: tokens)
        for number, seen in enumerate(observations):
            record(found, seen)
            if number % 50 == 0:
                assert found.facts().length is None
        change = found.facts().length_change
        assert change is not None
        assert abs(change) < CANARY.max_length_change


def test_answers_without_tokens_are_failures() -> None:
    found = ledger()
    for number in range(300):
        record(found, answer(number, 0.1, canary=True, output_tokens=0), answer(number, 1.0, canary=False))
    assert found.facts().errors is Verdict.FAIL


def costs(luck: random.Random, count: int, *, dearer: float, share_of_load: float = 1.0) -> list[Observation]:
    """Answers whose requests share the steps of a server: at a load of 4 each costs a third of one alone."""
    made = []
    for number in range(count):
        canary = luck.random() < 0.3
        load = max(1.0, luck.uniform(1.0, 6.0) * (share_of_load if canary else 1.0))
        cost = (0.8 + 0.2 * load) / load * luck.lognormvariate(0.0, 0.2) * (dearer if canary else 1.0)
        made.append(answer(number, 1.0, canary=canary, load=load, priced_s=cost))
    return made


def test_a_dearer_revision_is_shown() -> None:
    facts = facts_of(costs(random.Random(1), 3000, dearer=1.8))
    assert facts.cost is not None
    assert facts.cost.name.startswith("summarization/long at ")
    assert facts.cost_change is not None
    assert facts.cost_change > CANARY.max_cost_increase


def test_a_smaller_load_makes_no_revision_dearer() -> None:
    for seed in range(10):
        facts = facts_of(costs(random.Random(seed), 3000, dearer=1.0, share_of_load=0.4))
        assert facts.cost is None
        assert facts.cost_change is not None
        assert facts.cost_change < CANARY.max_cost_increase
    facts = facts_of(costs(random.Random(1), 3000, dearer=2.0, share_of_load=0.4))
    assert facts.cost is not None
