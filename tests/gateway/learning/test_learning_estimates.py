"""The estimates against simulated traffic whose truth is known: how near, how soon, and how honest their errors are."""

from __future__ import annotations

import math
import random

import pytest
from slipstream_core.observation import Estimate, Forecast, Level
from slipstream_core.types import Arm, LengthBin, TaskType
from slipstream_gateway.decide.estimate import Learner, priors

from tests.gateway.learning.samples import forecast_for, observe, profile

GAMMA = 4
Z_80 = 1.2816


def ask(
    learner: Learner, *, load: float = 1.0, max_tokens: int | None = None, speculative_pool: str | None = "pool",
    expected: float = 180.0, task: TaskType = TaskType.SUMMARIZATION, rare: float = 0.0, **fields: object,
) -> Forecast:  # fmt: skip
    """A learner's forecast for the subject of an observation with `fields`."""
    guess = profile(expected_output_tokens=expected, task=task, rare_probability=rare, rare_token_share=0.0)
    return forecast_for(
        learner, observe(**fields), guess, load=load, speculative=speculative_pool, max_tokens=max_tokens
    )


def speculate(
    rng: random.Random, beta: float, tokens: int, *, step_s: float = 0.03, **fields: object
) -> dict[str, object]:
    """Fields of a speculative answer of `tokens`, draft length 4, every draft token accepted with chance `beta`."""
    accepted = rejections = steps = drafted = 0
    left = tokens - 1
    while left > 0:
        steps += 1
        drafted += GAMMA
        run = next((at for at in range(GAMMA) if rng.random() >= beta), GAMMA)
        accepted += min(run, left)
        rejections += run < GAMMA
        left -= run + 1
    return {
        "arm": Arm.SPECULATIVE, "draft_length": GAMMA, "output_tokens": tokens, "drafted": drafted,
        "accepted": accepted, "rejections": rejections, "steps": steps, "e2e_s": 0.1 + steps * step_s,
        "batch_draft_length": float(GAMMA),
    } | fields  # fmt: skip


def plainly(tokens: int, tpot_s: float = 0.02, **fields: object) -> dict[str, object]:
    return {"output_tokens": tokens, "steps": tokens - 1, "e2e_s": 0.1 + (tokens - 1) * tpot_s + 1e-4} | fields


def covers(estimate: Estimate, truth: float) -> bool:
    return abs(estimate.mean - truth) <= Z_80 * estimate.se


def test_twenty_requests_tell_length_and_acceptance() -> None:
    rng = random.Random(1)
    length_errors, acceptance_errors = [], []
    for run in range(60):
        learner, mean, beta = Learner(), rng.uniform(20.0, 600.0), rng.uniform(0.3, 0.95)
        for _ in range(20):
            tokens = max(2, round(mean * math.exp(rng.gauss(-(0.25**2) / 2, 0.25))))
            learner.record(observe(**speculate(rng, beta, tokens)))
        forecast = ask(learner, expected=rng.choice((15.0, 100.0, 300.0)))
        assert forecast.output_tokens.level is Level.CLASS, run
        assert forecast.acceptance is not None
        assert forecast.acceptance.level is Level.CLASS, run
        length_errors.append(abs(forecast.output_tokens.mean / mean - 1.0))
        acceptance_errors.append(abs(forecast.acceptance.mean - beta))
    assert sorted(length_errors)[len(length_errors) // 2] < 0.06
    assert sorted(length_errors)[int(0.8 * len(length_errors))] < 0.12
    assert sorted(acceptance_errors)[int(0.9 * len(acceptance_errors))] < 0.05


def test_a_kind_of_request_never_seen_is_covered_by_its_class() -> None:
    rng, learner = random.Random(4), Learner()
    length_hits = acceptance_hits = 0
    for template in range(300):
        mean, beta = 180.0 * math.exp(rng.gauss(0.0, 0.35)), min(max(rng.gauss(0.6, 0.08), 0.2), 0.97)
        forecast = ask(learner)
        assert forecast.acceptance is not None
        if template >= 100:
            length_hits += covers(forecast.output_tokens, mean)
            acceptance_hits += covers(forecast.acceptance, beta)
        learner.record(observe(**speculate(rng, beta, max(2, round(mean)))))
    assert 0.65 <= length_hits / 200 <= 0.95, length_hits
    assert 0.65 <= acceptance_hits / 200 <= 0.95, acceptance_hits


def test_errors_are_wide_without_data_and_shrink() -> None:
    rng, learner = random.Random(5), Learner()
    relative, deviations = [], []
    for count in range(40):
        if count in (0, 3, 10, 39):
            forecast = ask(learner)
            assert forecast.acceptance is not None
            relative.append(forecast.output_tokens.se / forecast.output_tokens.mean)
            deviations.append(forecast.acceptance.se)
        learner.record(observe(**speculate(rng, 0.8, round(150 * math.exp(rng.gauss(0, 0.25))))))
    assert relative == sorted(relative, reverse=True)
    assert deviations == sorted(deviations, reverse=True)
    assert relative[0] > 0.5
    assert relative[-1] < 0.35  # another kind of request of the class may be longer
    assert deviations[0] > 0.08
    assert deviations[-1] < deviations[0]


def test_a_changed_prompt_shows_within_sixty_requests() -> None:
    rng, learner = random.Random(6), Learner()
    for _ in range(200):
        learner.record(observe(**speculate(rng, 0.9, round(60 * math.exp(rng.gauss(0, 0.25))))))
    for _ in range(60):
        learner.record(observe(**speculate(rng, 0.5, round(300 * math.exp(rng.gauss(0, 0.25))))))
    forecast = ask(learner)
    assert forecast.acceptance is not None
    assert forecast.output_tokens.mean == pytest.approx(300, rel=0.25)
    assert forecast.acceptance.mean == pytest.approx(0.5, abs=0.1)


def test_a_slow_drift_is_followed() -> None:
    rng, learner = random.Random(7), Learner()
    for index in range(300):
        tokens = round((100 + index) * math.exp(rng.gauss(0, 0.2)))
        learner.record(observe(**plainly(tokens)))
    assert ask(learner).output_tokens.mean == pytest.approx(400, rel=0.15)


def test_acceptance_is_kept_by_temperature_where_there_is_data() -> None:
    rng, learner = random.Random(10), Learner()
    for _ in range(30):
        learner.record(observe(temperature=2, **speculate(rng, 0.5, 150)))
        learner.record(observe(temperature=0, **speculate(rng, 0.9, 150)))
    greedy = ask(learner)
    assert greedy.acceptance is not None
    assert greedy.acceptance.mean == pytest.approx(0.9, abs=0.04)
    only_hot = Learner()
    for _ in range(30):
        only_hot.record(observe(temperature=2, **speculate(rng, 0.5, 150)))
    fallback, nothing = (ask(learner).acceptance for learner in (only_hot, Learner()))
    assert fallback is not None
    assert nothing is not None
    assert (fallback.level, fallback.mean < nothing.mean - 0.02) == (Level.PAIR, True)


def test_nothing_known_gives_priors_that_let_a_decision_be_made() -> None:
    forecast = ask(Learner())
    assert forecast.acceptance is not None
    assert 0.7 < forecast.acceptance.mean < 0.9
    assert forecast.step_base_s.mean == pytest.approx(priors.STEP_OVERHEAD * forecast.plain_tpot_s.mean)
    assert forecast.step_per_draft_token_s.mean == pytest.approx(priors.STEP.k * forecast.step_base_s.mean)
    levels = {
        estimate.level
        for estimate in (
            forecast.output_tokens, forecast.acceptance, forecast.plain_tpot_s, forecast.step_base_s,
            forecast.step_per_draft_token_s,
        )
    }  # fmt: skip
    assert levels == {Level.PRIOR}
    rare = ask(Learner(), rare=1.0).acceptance
    free = ask(Learner(), task=TaskType.CREATIVE_WRITING, cold_class="creative_writing/long").acceptance
    assert rare is not None
    assert free is not None
    assert rare.mean < free.mean < forecast.acceptance.mean


def test_max_tokens_caps_the_expected_length() -> None:
    learner = Learner()
    for _ in range(10):
        learner.record(observe(**plainly(200)))
    assert ask(learner, max_tokens=64).output_tokens.mean == 64
    assert ask(learner, max_tokens=6400).output_tokens.mean == pytest.approx(200, rel=0.1)


def test_answers_that_look_up_nothing_count_as_rejected() -> None:
    """A look-up draft that proposes in a tenth of the steps must not pass for one that always does."""
    learner = Learner()
    for _ in range(20):
        learner.record(
            observe(
                arm=Arm.SPECULATIVE, draft_length=GAMMA, output_tokens=137, drafted=40, accepted=36, rejections=1,
                steps=100, e2e_s=2.1, batch_draft_length=0.4,
            )
        )  # fmt: skip
    acceptance = ask(learner).acceptance
    assert acceptance is not None
    per_step = sum(acceptance.mean**power for power in range(GAMMA + 1))
    assert per_step == pytest.approx(1.36, abs=0.12)


def test_after_twenty_requests_routing_is_within_a_few_percent_of_perfect() -> None:
    """Classes of all sorts, half of their answers by either arm: what the forecast's choice saves of what knowing the
    truth would. A step takes 20 ms plainly and 15 % more for each draft token."""
    rng, learner = random.Random(11), Learner()
    names = [f"{task}/{length}" for task in TaskType for length in LengthBin]
    classes = {name: (rng.uniform(5.0, 400.0), rng.uniform(0.1, 0.95)) for name in names}
    for index in range(20 * len(classes)):
        name = names[index % len(classes)]
        mean, beta = classes[name]
        tokens = max(2, round(mean * math.exp(rng.gauss(-0.03, 0.25))))
        fast = speculate(rng, beta, tokens, step_s=0.02 * (1 + 0.15 * GAMMA) * math.exp(rng.gauss(0.0, 0.1)))
        learner.record(observe(cold_class=name, **(fast if rng.random() < 0.5 else plainly(tokens))))
    gained = perfect = 0.0
    for name, (mean, beta) in classes.items():
        seen = ask(learner, cold_class=name)
        assert seen.acceptance is not None
        per_step = sum(seen.acceptance.mean**power for power in range(GAMMA + 1))
        tpot_s = (seen.step_base_s.mean + GAMMA * seen.step_per_draft_token_s.mean) / per_step
        predicted = (seen.output_tokens.mean - 1) * (seen.plain_tpot_s.mean - tpot_s)
        truth = mean * 0.02 * (1 - (1 + 0.15 * GAMMA) / sum(beta**power for power in range(GAMMA + 1)))
        perfect += max(truth, 0.0)
        gained += truth if predicted > 0.0 else 0.0
    assert gained / perfect > 0.97
