"""A hostile key beside honest ones: whatever it sends, another key's requests are decoded as without it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import pytest
from slipstream_core.observation import Draws
from slipstream_core.types import Arm, Reason
from slipstream_gateway.decide.estimate import Learner
from slipstream_gateway.decide.route import DecisionInputs, decide

from tests.gateway.learning.samples import forecast_for, observe
from tests.gateway.learning.test_learning_estimates import plainly, speculate
from tests.gateway.routing import cases

GOOD = 0.8
HONEST = [letter * 16 for letter in "bcdfg"]
VICTIM, ATTACKER = "a" * 16, "e" * 16
LOADS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
# Three standard deviations of the difference of two shares of `ASKED` requests of which 19 in 20 speculate.
ASKED = 40
NOISE = 3.0 * math.sqrt(2.0 * 0.95 * 0.05 / ASKED)


class Answer(NamedTuple):
    """The true times of the servers and the true acceptance of a request."""

    beta: float = GOOD
    tokens: int = 200
    load: float = 1.0

    def fields(self, rng: random.Random, arm: Arm) -> dict[str, object]:
        slower = self.load**0.3 * math.exp(rng.gauss(0.0, 0.1))
        if arm is Arm.SPECULATIVE:
            return speculate(rng, self.beta, self.tokens, step_s=0.03 * slower, load=self.load)
        return plainly(self.tokens, 0.02 * slower, load=self.load)


class Deployment:
    """A learner with the decisions of a policy of defaults, on servers that answer as `Answer`."""

    def __init__(self, seed: int) -> None:
        self.rng, self.learner, self.route = random.Random(seed), Learner(), cases.route()

    def decided(self, key: str, load: float) -> tuple[Arm, Reason]:
        rng = self.rng
        draws = Draws(
            hold_back=rng.random(),
            exploration=rng.random(),
            draft_length=0.9,
            parity=1.0,
            rollout=rng.random(),
            canary=1.0,
        )
        forecast = forecast_for(self.learner, observe(key=key), load=load)
        found = decide(DecisionInputs(cases.request(), cases.profile(), self.route, forecast=forecast, draws=draws))
        return found.arm, found.reason

    def share(self, key: str, count: int, between: Callable[[], None] = lambda: None) -> float:
        """The share of `count` requests of a key that would speculate without a comparison; `between` runs before each
        request."""
        speculated = 0
        for _ in range(count):
            between()
            load = self.rng.choice(LOADS)
            arm, _ = self.decided(key, load)
            speculated += arm is not Arm.PLAIN
            self.learner.record(observe(key=key, **Answer(load=load).fields(self.rng, arm)))
        return speculated / max(count, 1)


def _slow(times: float, **fields: object) -> dict[str, object]:
    """A speculative answer that takes `times` as long as others."""
    rng, load = random.Random(), random.choice(LOADS)
    found = Answer(load=load).fields(rng, Arm.SPECULATIVE)
    return found | {"e2e_s": 0.1 + times * (found["e2e_s"] - 0.1)} | fields  # type: ignore[operator]


def _any_load(arm: Arm, **fields: object) -> dict[str, object]:
    load = random.choice(LOADS)
    return Answer(load=load).fields(random.Random(), arm) | fields


ATTACKS: dict[str, Callable[[], dict[str, object]]] = {
    "short answers": lambda: Answer(tokens=3).fields(random.Random(), random.choice((Arm.SPECULATIVE, Arm.PLAIN))),
    "immediate stops": lambda: {"output_tokens": 1, "steps": 0, "e2e_s": 0.1},
    "rare tokens": lambda: Answer(beta=0.03, tokens=400).fields(random.Random(), Arm.SPECULATIVE),
    "hot sampling": lambda: Answer(beta=0.1).fields(random.Random(), Arm.SPECULATIVE) | {"temperature": 3},
    "slow reading": lambda: _slow(10.0),
    "slow first tokens": lambda: _slow(1.0, ttft_s=1.0, e2e_s=4.0),
    "somewhat slow": lambda: _slow(1.2),
    "quick plain answers": lambda: plainly(400, 0.002, load=random.choice(LOADS)),
    "slow plain answers": lambda: plainly(400, 0.2, load=random.choice(LOADS)),
    "cancelled": lambda: _slow(10.0, status="cancelled"),
    "no draft tokens": lambda: _any_load(Arm.SPECULATIVE, drafted=0, accepted=0, rejections=0),
    "long prompts": lambda: _slow(3.0, prompt_tokens=30_000, ttft_s=3.0, e2e_s=20.0),
}  # fmt: skip


@lru_cache
def served(attack: str | None, honest: int, *, count: int, history: int) -> tuple[float, float]:
    """The share of the victim's requests that speculate during an attack of `count` requests, and after it."""
    seed = count + history
    deployment = Deployment(seed)
    random.seed(seed)
    for key in HONEST[:honest]:
        deployment.share(key, 20)
    deployment.share(VICTIM, history)

    def hostile(requests: int) -> None:
        for _ in range(requests if attack is not None else 0):
            deployment.learner.record(observe(key=ATTACKER, **ATTACKS[attack or ""]()))

    hostile(count // 2)
    during = deployment.share(VICTIM, ASKED, lambda: hostile(count // (2 * ASKED)))
    return during, deployment.share(VICTIM, ASKED)


@pytest.mark.parametrize("history", [0, 30], ids=["new", "known"])
@pytest.mark.parametrize("honest", [0, 1, 2, 5])
@pytest.mark.parametrize("attack", ATTACKS)
def test_no_request_of_one_key_moves_anothers_arm(attack: str, honest: int, history: int) -> None:
    """Paired: the same seed with and without the attack, so that only what the victim does of itself is left."""
    without = served(None, honest, count=240, history=history)
    assert served(attack, honest, count=240, history=history) == pytest.approx(without, abs=NOISE)
