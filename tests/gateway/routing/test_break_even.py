"""The break-even: the formula against a plain reading of it, and what must hold whatever the numbers are."""

from __future__ import annotations

import math
import random
import statistics
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream_core.observation import Estimate, Forecast, Level
from slipstream_gateway.decide.route import predict_saving, saving_se_s


def estimate(mean: float, se: float = 0.0) -> Estimate:
    return Estimate(mean=mean, se=se, samples=20.0, level=Level.CLASS)


def forecast(**changes: Any) -> Forecast:
    """200 tokens at β = 0.8; a step costs 12 ms and 1 ms per draft token, a plain token 10 ms."""
    fields: dict[str, Any] = {
        "output_tokens": 200.0,
        "acceptance": 0.8,
        "plain_tpot_s": 0.010,
        "step_base_s": 0.012,
        "step_per_draft_token_s": 0.001,
    }
    length = changes.pop("neighbours_draft_length", 0.0)
    parts = {name: estimate(value) if isinstance(value, float) else value for name, value in (fields | changes).items()}
    return Forecast(load=1.0, neighbours_draft_length=length, **parts)


def test_the_saving_is_that_of_the_formula() -> None:
    best = predict_saving(forecast(), shortest=3, longest=3)
    tokens_per_step = (1 - 0.8**4) / (1 - 0.8)
    assert best.tokens_per_step == pytest.approx(tokens_per_step)
    assert best.speculative_tpot_s == pytest.approx(0.015 / tokens_per_step)
    assert best.plain_s == pytest.approx(200 * 0.010)
    assert best.speculative_s == pytest.approx(0.010 + 199 * 0.015 / tokens_per_step)
    assert best.saving_s == pytest.approx(best.plain_s - best.speculative_s)


def test_a_single_token_comes_with_the_prompt_and_saves_nothing() -> None:
    assert predict_saving(forecast(output_tokens=1.0), shortest=1, longest=6).saving_s == 0.0


def test_an_answer_that_ends_within_one_step_saves_nothing_beyond_that_step() -> None:
    best = predict_saving(forecast(output_tokens=2.0), shortest=1, longest=6)
    assert (best.draft_length, best.speculative_s) == (1, pytest.approx(0.010 + 0.013))
    adaptive = predict_saving(forecast(output_tokens=2.0), shortest=1, longest=6, adaptive=True)
    assert adaptive.saving_s == 0.0  # the engine does not draft where it does not pay


def test_without_counts_of_draft_tokens_a_step_is_a_token() -> None:
    best = predict_saving(
        forecast(acceptance=None, step_base_s=0.004, step_per_draft_token_s=0.0), shortest=5, longest=5
    )
    assert (best.draft_length, best.tokens_per_step, best.speculative_tpot_s) == (5, 1.0, 0.004)


numbers = st.floats(1e-5, 10.0)
forecasts = st.builds(
    forecast,
    output_tokens=st.floats(1.0, 5000.0),
    acceptance=st.one_of(st.none(), st.floats(0.0, 1.0)),
    plain_tpot_s=numbers,
    step_base_s=numbers,
    step_per_draft_token_s=st.floats(0.0, 10.0),
)


@settings(max_examples=200, deadline=None)
@given(found=forecasts, cap=st.integers(1, 32))
def test_no_other_draft_length_saves_more(found: Forecast, cap: int) -> None:
    best = predict_saving(found, shortest=1, longest=cap)
    savings = [predict_saving(found, shortest=length, longest=length).saving_s for length in range(1, cap + 1)]
    assert best.saving_s == max(savings)
    assert 1.0 <= best.tokens_per_step <= best.draft_length + 1


@settings(max_examples=200, deadline=None)
@given(found=forecasts, more=st.floats(0.0, 5000.0))
def test_longer_answers_save_more_exactly_where_a_token_takes_less(found: Forecast, more: float) -> None:
    longer = forecast(
        output_tokens=found.output_tokens.mean + more,
        acceptance=found.acceptance,
        plain_tpot_s=found.plain_tpot_s,
        step_base_s=found.step_base_s,
        step_per_draft_token_s=found.step_per_draft_token_s,
    )
    short, long = (predict_saving(case, shortest=1, longest=6) for case in (found, longer))
    if found.output_tokens.mean <= 8.0:
        return  # a single step may yield the answer, and then its time does not depend on the length
    grows = short.speculative_tpot_s < found.plain_tpot_s.mean
    slack = 1e-9 * long.plain_s + 1e-9 * long.speculative_s
    if grows:
        assert long.saving_s >= short.saving_s - slack
    else:
        assert long.saving_s <= short.saving_s + slack


def test_the_standard_error_is_what_sampling_the_parts_shows() -> None:
    """The delta method against 20,000 draws of every part from its own normal distribution."""
    spread = {
        "output_tokens": (200.0, 10.0),
        "acceptance": (0.8, 0.01),
        "plain_tpot_s": (0.010, 0.0002),
        "step_base_s": (0.012, 0.0003),
        "step_per_draft_token_s": (0.001, 0.00005),
    }
    uncertain = forecast(**{name: estimate(*value) for name, value in spread.items()})
    predicted = saving_se_s(uncertain, predict_saving(uncertain, shortest=4, longest=4), same_pace=False)
    rng = random.Random(7)
    sampled = [
        predict_saving(
            forecast(**{name: rng.gauss(mean, se) for name, (mean, se) in spread.items()}), shortest=4, longest=4
        ).saving_s
        for _ in range(20_000)
    ]
    assert predicted == pytest.approx(statistics.stdev(sampled), rel=0.05)


def test_what_cannot_be_known_makes_the_error_infinite_and_not_an_exception() -> None:
    unknown = forecast(acceptance=estimate(0.5, math.inf))
    assert saving_se_s(unknown, predict_saving(unknown, shortest=1, longest=6), same_pace=True) == math.inf


def test_a_pace_that_nobody_knows_yet_leaves_the_sign_of_a_saving_on_the_same_pace_certain() -> None:
    """Servers that may be three times as fast or as slow: both arms are, so that a clear saving stays one."""
    pace = 1.5
    unknown = forecast(plain_tpot_s=estimate(0.010, 0.010 * pace), step_base_s=estimate(0.012, 0.012 * pace))
    best = predict_saving(unknown, shortest=4, longest=4)
    assert saving_se_s(unknown, best, same_pace=False) > best.saving_s
    same = saving_se_s(unknown, best, same_pace=True)
    assert 2.33 * same < best.saving_s
    losing = predict_saving(forecast(acceptance=0.1), shortest=4, longest=4)
    assert losing.saving_s + 2.33 * saving_se_s(unknown, losing, same_pace=True) < 0
    ahead = forecast(plain_tpot_s=estimate(0.010, 0.0005), step_base_s=estimate(0.012, 0.0018))
    one = saving_se_s(ahead, best, same_pace=True)
    assert one == pytest.approx(
        math.hypot(
            0.05 * 199 * (0.010 - best.speculative_tpot_s),
            math.sqrt(0.15**2 - 0.05**2) * 0.012 * 199 / best.tokens_per_step,
        )
    )


# A batch of eight: alone this answer gains nothing from speculation, beside neighbours that speculate it does.
POOR = {"acceptance": 0.45, "plain_tpot_s": 0.020, "step_base_s": 0.026, "step_per_draft_token_s": 0.005}


def test_beside_neighbours_that_speculate_a_step_is_long_anyway_and_joining_them_pays() -> None:
    assert predict_saving(forecast(**POOR), shortest=1, longest=6).saving_s < 0.0
    beside = forecast(**POOR, neighbours_step_s=estimate(0.045), neighbours_draft_length=4.0)
    joined = predict_saving(beside, shortest=1, longest=6)
    assert joined.saving_s > 0.0
    assert joined.plain_tpot_s == 0.045
    assert not joined.pays_alone


def test_what_pays_alone_stands_by_itself_beside_neighbours_too() -> None:
    beside = forecast(neighbours_step_s=estimate(0.02), neighbours_draft_length=4.0)
    assert predict_saving(forecast(), shortest=1, longest=6).pays_alone
    assert predict_saving(beside, shortest=1, longest=6).pays_alone


def test_the_first_to_join_a_batch_that_hardly_speculates_pays_the_overhead_itself() -> None:
    few = forecast(**POOR, neighbours_step_s=estimate(0.021), neighbours_draft_length=0.1)
    many = forecast(**POOR, neighbours_step_s=estimate(0.021), neighbours_draft_length=1.0)
    assert (
        predict_saving(few, shortest=1, longest=6).speculative_tpot_s
        > predict_saving(many, shortest=1, longest=6).speculative_tpot_s
    )
