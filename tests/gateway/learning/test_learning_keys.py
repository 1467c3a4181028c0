"""What one API key's requests do to the estimates of another: nothing by themselves."""

from __future__ import annotations

import math
import random
import tracemalloc
from itertools import cycle, islice

import msgspec
import pytest
from slipstream_core.observation import Forecast, Level, Observation
from slipstream_core.types import Arm, Reason
from slipstream_gateway.decide.estimate import Learner
from slipstream_gateway.decide.route import NO_DRAWS, DecisionInputs, decide

from tests.gateway.learning.samples import forecast_for, observe
from tests.gateway.learning.test_learning_estimates import Z_80, plainly, speculate
from tests.gateway.routing import cases

GOOD = 0.8
BAD = 0.03
VICTIM, ATTACKER = "a" * 16, "e" * 16
HONEST = ["b" * 16, "c" * 16, "d" * 16]
FIVE = [*HONEST, "f" * 16, "9" * 16]
# Twice what an honest key may differ from the prior.
MOST_ACCEPTANCE = 0.1
MOST_LOG_LENGTH = 0.5


def ask(learner: Learner, key: str, load: float = 1.0, **fields: object) -> Forecast:
    """A learner's forecast for a request of a key."""
    seen = observe(**{"key": key} | fields)
    return forecast_for(learner, seen, load=load)


def serve(learner: Learner, key: str, count: int, beta: float = GOOD) -> None:
    """Good answers to a key's requests, by both arms."""
    rng = random.Random(key)
    for _ in range(count):
        tokens = round(200 * math.exp(rng.gauss(0, 0.2)))
        learner.record(observe(key=key, **speculate(rng, beta, tokens)))
        learner.record(observe(key=key, **plainly(tokens)))


def attack(learner: Learner, count: int) -> None:
    """Unpredictable answers of one key."""
    rng = random.Random(1)
    for _ in range(count):
        learner.record(observe(key=ATTACKER, **speculate(rng, BAD, 400)))


def accepted(forecast: Forecast) -> float:
    assert forecast.acceptance is not None
    return forecast.acceptance.mean


@pytest.mark.parametrize("count", [24, 240])
@pytest.mark.parametrize("evidence", ["own", "of two others", "of one other", "none"])
def test_one_key_hardly_moves_what_another_expects(evidence: str, count: int) -> None:
    learner = Learner()
    for key in {"own": [VICTIM], "of two others": HONEST[:2], "of one other": HONEST[:1], "none": []}[evidence]:
        serve(learner, key, 20)
    before = ask(learner, VICTIM)
    attack(learner, count)
    after = ask(learner, VICTIM)
    assert abs(accepted(after) - accepted(before)) < MOST_ACCEPTANCE
    assert abs(math.log(after.output_tokens.mean / before.output_tokens.mean)) < MOST_LOG_LENGTH
    assert accepted(ask(learner, ATTACKER)) < 0.25  # its own it knows


@pytest.mark.parametrize("evidence", ["own", "of two others"])
def test_another_keys_requests_go_on_speculating(evidence: str) -> None:
    """The decision itself, cautious as policies are unless they say otherwise."""
    learner, route = Learner(), cases.route()

    def decided(key: str, **fields: object) -> tuple[Arm, Reason]:
        found = decide(
            DecisionInputs(
                cases.request(), cases.profile(), route, forecast=ask(learner, key, **fields), draws=NO_DRAWS
            )
        )
        return found.arm, found.reason

    for key in [VICTIM] if evidence == "own" else HONEST[:2]:
        serve(learner, key, 20)
    assert decided(VICTIM) == (Arm.SPECULATIVE, Reason.SPECULATION_PAYS)
    attack(learner, 240)
    assert decided(VICTIM) == (Arm.SPECULATIVE, Reason.SPECULATION_PAYS)
    assert decided(ATTACKER) == (Arm.PLAIN, Reason.BREAK_EVEN)


def test_a_class_that_gets_worse_for_one_key_is_that_keys() -> None:
    learner = Learner()
    for key in (VICTIM, *HONEST):
        serve(learner, key, 20)
    before = {key: accepted(ask(learner, key)) for key in (VICTIM, *HONEST)}
    serve(learner, VICTIM, 40, beta=0.3)
    assert accepted(ask(learner, VICTIM)) < before[VICTIM] - 0.25
    for key in HONEST:
        assert accepted(ask(learner, key)) == pytest.approx(before[key], abs=0.05)


def test_a_new_key_takes_over_what_most_keys_show() -> None:
    learner = Learner()
    before = ask(learner, VICTIM)
    assert before.acceptance is not None
    assert before.acceptance.level is Level.PRIOR
    serve(learner, HONEST[0], 20, beta=0.45)
    alone = ask(learner, VICTIM)
    assert alone.acceptance is not None
    assert (alone.acceptance.level, alone.acceptance.mean) == (Level.PRIOR, before.acceptance.mean)
    for key in HONEST[1:]:
        serve(learner, key, 20, beta=0.45)
    shared = ask(learner, VICTIM)
    assert shared.acceptance is not None
    assert (shared.acceptance.level, shared.acceptance.samples) == (Level.KEYS, 3)
    assert shared.acceptance.mean < before.acceptance.mean - 0.1
    assert shared.acceptance.se < before.acceptance.se


def test_intervals_of_keys_that_differ_hold_what_they_promise() -> None:
    """80 % intervals of kinds of requests never seen, of keys with many answers, few, and none."""
    rng, learner, hits, total = random.Random(3), Learner(), 0, 0
    for number in range(60):
        key, keys_own = f"{number:016x}", rng.gauss(0.65, 0.08)
        for _ in range(1 + number % 8):
            beta = min(max(rng.gauss(keys_own, 0.08), 0.2), 0.97)
            found = ask(learner, key)
            assert found.acceptance is not None
            if number >= 10:
                hits += abs(found.acceptance.mean - beta) <= Z_80 * found.acceptance.se
                total += 1
            seen = speculate(rng, beta, 200)
            learner.record(observe(key=key, **seen))
    assert total > 200
    assert 0.68 <= hits / total <= 0.95, hits / total


def test_a_single_key_learns_as_a_deployment_without_keys() -> None:
    """To the last bit."""
    rng, one, other = random.Random(4), Learner(), Learner()
    for _ in range(300):
        beta, tokens = rng.uniform(0.2, 0.9), rng.randrange(5, 300)
        seen = speculate(rng, beta, tokens) if rng.random() < 0.6 else plainly(tokens, rng.uniform(0.01, 0.05))
        one.record(observe(key=VICTIM, **seen))
        other.record(observe(**seen))
    assert ask(one, VICTIM) == ask(other, "")


@pytest.mark.parametrize("attacked", [Arm.PLAIN, Arm.SPECULATIVE])
@pytest.mark.parametrize("slowness", [0.3, 3.0])
@pytest.mark.parametrize("count", [24, 200])
def test_one_key_alone_does_not_make_the_servers_slow(count: int, slowness: float, attacked: Arm) -> None:
    rng, learner = random.Random(5), Learner()
    serve(learner, VICTIM, 20)
    before = ask(learner, VICTIM)
    for _ in range(count):
        seen = observe(
            key=ATTACKER,
            **(speculate(rng, GOOD, 200) if attacked is Arm.SPECULATIVE else plainly(200)),
        )  # fmt: skip
        learner.record(msgspec.structs.replace(seen, ttft_s=0.1 * slowness, e2e_s=seen.e2e_s * slowness))
    after = ask(learner, VICTIM)
    for name in ("plain_tpot_s", "step_base_s", "step_per_draft_token_s"):
        assert getattr(after, name).mean == pytest.approx(getattr(before, name).mean, rel=0.05), name


@pytest.mark.parametrize("honest", [0, 1, 2, 5])
def test_a_key_that_follows_the_curve_does_not_move_it(honest: int) -> None:
    """Every answer takes 20 % longer than is expected of it, which may be chance."""
    learner = Learner()
    for key in (VICTIM, *FIVE[:honest]):
        serve(learner, key, 60)
    before = ask(learner, VICTIM)
    for _ in range(400):
        tpot_s = 1.2 * ask(learner, ATTACKER).plain_tpot_s.mean
        learner.record(observe(key=ATTACKER, **plainly(200, min(tpot_s, 10.0))))
    after = ask(learner, VICTIM)
    assert after.plain_tpot_s.mean == pytest.approx(before.plain_tpot_s.mean, rel=0.001)


def test_servers_that_are_slow_for_every_key_are_slow() -> None:
    learner = Learner()
    keys = [VICTIM, *HONEST]

    def send(count: int, tpot_s: float) -> None:
        for key in islice(cycle(keys), count):
            learner.record(observe(key=key, **plainly(200, tpot_s)))

    send(80, 0.02)
    assert ask(learner, "new").plain_tpot_s.mean == pytest.approx(0.02, rel=0.05)
    send(80, 0.06)
    assert ask(learner, "new").plain_tpot_s.mean == pytest.approx(0.06, rel=0.1)


def test_a_slow_first_answer_is_corrected_by_the_next_ones_of_two_keys() -> None:
    """A cold server's first answer takes five times as long as those after it."""
    learner = Learner()
    for index in range(5):
        key = (VICTIM, HONEST[0])[index % 2]
        seen = plainly(200, 0.005 if index else 0.025)
        learner.record(observe(key=key, **seen))
    assert ask(learner, "new").plain_tpot_s.mean < 0.012


def test_a_key_follows_its_own_answers_against_all_others() -> None:
    learner = Learner()
    for key in (VICTIM, *HONEST):
        for _ in range(10):
            learner.record(observe(key=key, **plainly(200, 0.02)))
    for _ in range(30):
        learner.record(observe(key=VICTIM, **plainly(200, 0.06)))
    assert ask(learner, VICTIM).plain_tpot_s.mean == pytest.approx(0.06, rel=0.1)
    assert ask(learner, HONEST[0]).plain_tpot_s.mean == pytest.approx(0.02, rel=0.05)


def test_a_new_key_takes_over_the_times_that_most_keys_measure() -> None:
    """The ratio of the arms, and the cost of the load."""
    rng, learner = random.Random(7), Learner()
    for key in HONEST:
        for load in (1.0, 8.0):
            for _ in range(20):
                learner.record(observe(key=key, load=load, **plainly(200, 0.005 * load**0.5)))
                learner.record(observe(key=key, load=load, **speculate(rng, GOOD, 200, step_s=0.02 * load**0.5)))
    for load in (1.0, 8.0):
        found = ask(learner, VICTIM, load)
        step_s = found.step_base_s.mean + 4 * found.step_per_draft_token_s.mean
        assert found.plain_tpot_s.mean == pytest.approx(0.005 * load**0.5, rel=0.1)
        assert step_s / found.plain_tpot_s.mean == pytest.approx(4.0, rel=0.15)
        assert (found.plain_tpot_s.level, found.step_base_s.level) == (Level.KEYS, Level.KEYS)
        assert found.timed


@pytest.mark.slow
def test_keys_without_end_do_not_grow_memory() -> None:
    """Each with loads of its own."""
    rng, learner = random.Random(6), Learner()

    def flood(numbers: range) -> None:
        for number in numbers:
            for _ in range(4):
                fields = {"load": rng.uniform(1, 999)}
                learner.record(observe(key=f"{number:016x}", **fields, **speculate(rng, 0.5, 50)))

    flood(range(300))
    tracemalloc.start()
    flood(range(300, 400))
    before = tracemalloc.get_traced_memory()[0]
    flood(range(400, 900))
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 10_000_000  # 500 keys that stayed would take 50 megabytes


def test_outcomes_of_gateways_that_know_no_keys_are_read() -> None:
    fields = msgspec.to_builtins(observe(key=VICTIM))
    assert fields["subject"].pop("key") == VICTIM
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=Observation) == observe()
