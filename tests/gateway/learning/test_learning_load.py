"""Times by load: how plain and speculative steps slow down as a server fills up, and how soon that is known."""

from __future__ import annotations

import math
import random

import pytest
from slipstream_core.observation import Level
from slipstream_core.types import Arm
from slipstream_gateway.decide.estimate import Learner, priors
from slipstream_gateway.decide.estimate.curves import Curve, CurvePrior

from tests.gateway.learning.samples import forecast_for, observe

PRIOR = CurvePrior(base=0.02, base_spread=1.5, k=0.1, k_spread=0.1, noise=0.15)
Z_80 = 1.2816


def teach(curve: Curve, load: float, x: float, seconds: float) -> None:
    curve.update(load, x, seconds, curve.line(load).at(x))


def test_a_curve_learns_base_and_slope() -> None:
    rng, curve = random.Random(1), Curve(PRIOR)
    for _ in range(200):
        x = rng.choice((0.0, 1.0, 2.0, 4.0, 6.0))
        teach(curve, 1.0, x, 0.005 * (1.0 + 0.2 * x) * math.exp(rng.gauss(0, 0.1)))
    line = curve.line(1.0)
    assert line.base == pytest.approx(0.005, rel=0.06)
    assert line.slope / line.base == pytest.approx(0.2, abs=0.03)


def test_intervals_of_a_curve_hold_what_they_promise() -> None:
    rng = random.Random(2)
    hits = total = 0
    for _ in range(250):
        curve, base, k = Curve(PRIOR), math.exp(rng.uniform(-6.0, -2.0)), min(max(rng.gauss(0.1, 0.08), 0.01), 0.4)
        for _ in range(rng.choice((4, 12, 40))):
            x = rng.choice((0.0, 4.0))
            teach(curve, 1.0, x, base * (1.0 + k * x) * math.exp(rng.gauss(-0.011, 0.15)))
        line = curve.line(1.0)
        hits += abs(line.base - base) <= Z_80 * line.base_se
        hits += abs(line.slope - k * base) <= Z_80 * line.slope_se
        total += 2
    assert 0.70 <= hits / total <= 0.92, hits / total


def test_a_load_never_seen_leans_on_its_neighbours_and_knows_less() -> None:
    rng, curve = random.Random(3), Curve(PRIOR)
    for _ in range(60):
        teach(curve, 2.0, 0.0, 0.004 * math.exp(rng.gauss(0, 0.1)))
        teach(curve, 8.0, 0.0, 0.009 * math.exp(rng.gauss(0, 0.1)))
    between, beyond = curve.line(4.0), curve.line(64.0)
    assert 0.004 < between.base < 0.009
    assert 0.006 < beyond.base < 0.011
    assert curve.line(8.0).base_se < between.base_se < beyond.base_se


def test_a_load_is_taken_for_the_nearest_power_of_two() -> None:
    curve = Curve(PRIOR)
    for load, seconds in ((1.0, 0.01), (2.0, 0.02), (4.0, 0.05)):
        for _ in range(30):
            teach(curve, load, 0.0, seconds)
    bases = {load: curve.line(load).base for load in (0.5, 1.4, 1.5, 2.8, 2.9, 5.0)}
    assert [bases[load] for load in (0.5, 1.4)] == pytest.approx([0.01, 0.01], rel=0.05)
    assert [bases[load] for load in (1.5, 2.8)] == pytest.approx([0.02, 0.02], rel=0.05)
    assert [bases[load] for load in (2.9, 5.0)] == pytest.approx([0.05, 0.05], rel=0.05)


def test_a_server_that_turns_slow_shows_within_tens_of_requests() -> None:
    rng, curve = random.Random(4), Curve(PRIOR)
    for _ in range(500):
        teach(curve, 1.0, 0.0, 0.005 * math.exp(rng.gauss(0, 0.1)))
    for _ in range(20):
        teach(curve, 1.0, 0.0, 0.015 * math.exp(rng.gauss(0, 0.1)))
    assert curve.line(1.0).base == pytest.approx(0.015, rel=0.12)


def test_one_outlier_hardly_moves_a_curve() -> None:
    rng, curve = random.Random(5), Curve(PRIOR)
    for _ in range(100):
        teach(curve, 1.0, 0.0, 0.005 * math.exp(rng.gauss(0, 0.1)))
    before = curve.line(1.0).base
    teach(curve, 1.0, 0.0, 30.0)
    assert curve.line(1.0).base == pytest.approx(before, rel=0.02)


def test_saturation_shows_in_what_a_draft_token_costs() -> None:
    """Alone a draft token adds a tenth of a step, in a full batch a half: at β 0.6 speculation pays only alone."""
    rng, learner = random.Random(6), Learner()
    for _ in range(400):
        load = rng.choice((1.0, 2.0, 4.0, 8.0, 16.0))
        fast = rng.random() < 0.5
        draft_length = 4.0 if fast else 0.0
        k = 0.1 + 0.4 * math.log2(load) / 4.0
        step_s = 0.01 * (1.0 + load / 16.0) * (1.0 + k * draft_length) * math.exp(rng.gauss(0, 0.1))
        steps = 75 if fast else 149
        learner.record(
            observe(
                arm=Arm.SPECULATIVE if fast else Arm.PLAIN, draft_length=int(draft_length), load=load,
                batch_draft_length=draft_length, output_tokens=150, steps=steps, drafted=300 if fast else 0,
                accepted=75 if fast else 0, rejections=50 if fast else 0, e2e_s=0.1 + steps * step_s,
            )
        )  # fmt: skip

    def gain(load: float) -> float:
        seen = forecast_for(learner, observe(), load=load)
        assert seen.acceptance is not None
        per_step = sum(seen.acceptance.mean**power for power in range(5))
        return seen.plain_tpot_s.mean * per_step / (seen.step_base_s.mean + 4 * seen.step_per_draft_token_s.mean)

    assert gain(1.0) > 1.3
    assert gain(16.0) < 0.9


def test_a_speculative_pool_never_asked_is_taken_for_like_the_plain_one() -> None:
    learner = Learner()
    for _ in range(50):
        learner.record(observe(pool="plain", e2e_s=5.1))
    seen = forecast_for(learner, observe(), plain="plain", speculative="fast")
    assert seen.step_base_s.mean == pytest.approx(priors.STEP_OVERHEAD * 0.05, rel=0.1)
    assert seen.step_base_s.se > seen.plain_tpot_s.se
    assert seen.step_base_s.level is Level.PRIOR


def test_servers_that_count_no_draft_tokens_are_judged_by_their_time_per_token() -> None:
    """Predictable answers are quick there, others slow: that is the class's, and stands for the acceptance."""
    learner = Learner()
    for _ in range(30):
        learner.record(observe(pool="plain"))
        for name, seconds in (("code/long", 1.1), ("open_chat/long", 3.1)):
            learner.record(
                observe(
                    cold_class=name, pool="fast", arm=Arm.SPECULATIVE, draft_length=4, steps=0, e2e_s=seconds,
                    batch_draft_length=4.0,
                )
            )  # fmt: skip
    quick, slow = (
        forecast_for(learner, observe(cold_class=name), plain="plain", speculative="fast")
        for name in ("code/long", "open_chat/long")
    )
    for seen, tpot_s in ((quick, 0.01), (slow, 0.03)):
        assert seen.acceptance is None
        assert seen.step_per_draft_token_s.mean == 0.0
        assert seen.step_base_s.mean == pytest.approx(tpot_s, rel=0.15)
        assert seen.plain_tpot_s.mean == pytest.approx(0.02, rel=0.1)


def test_answers_that_were_not_streamed_teach_the_pace_all_the_same() -> None:
    learner = Learner()
    for _ in range(40):
        learner.record(observe())
    for _ in range(40):
        learner.record(observe(ttft_s=None, e2e_s=4.1))
    assert forecast_for(learner, observe()).plain_tpot_s.mean == pytest.approx(0.04, rel=0.1)


@pytest.mark.parametrize("tpot_s", [0.0005, 0.003, 0.2])
def test_the_pace_is_learnt_without_any_streamed_answer(tpot_s: float) -> None:
    """The time to first token is not measured, and must not be taken for the prior's 50 ms."""
    learner = Learner()
    for count in (1, 5, 20):
        for _ in range(count):
            learner.record(observe(ttft_s=None, output_tokens=18, e2e_s=19 * tpot_s))
        found = forecast_for(learner, observe())
        assert found.plain_tpot_s.mean == pytest.approx(tpot_s, rel=0.2)


def test_predictions_in_seconds_need_more_than_a_few_steps() -> None:
    learner = Learner()
    assert not forecast_for(learner, observe()).timed
    for _ in range(5):
        learner.record(observe(ttft_s=None, output_tokens=2, e2e_s=0.06))
    assert not forecast_for(learner, observe()).timed
    learner.record(observe(output_tokens=18, ttft_s=0.01, e2e_s=0.06))
    assert forecast_for(learner, observe()).timed
