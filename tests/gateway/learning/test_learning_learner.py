"""The learner under what it must stand: floods, nonsense, and outcomes of other replicas in any order."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream_core.observation import Level, Observation, Subject
from slipstream_core.types import Arm, Reason, RequestProfile, TaskType
from slipstream_gateway.decide.estimate import ArmComparisons, ForecastQuery, Learner, subject_of

from tests.gateway.learning.samples import forecast_for, observe, profile


def fast(tokens: int, share: float, **fields: object) -> Observation:
    """A speculative answer whose draft tokens were accepted with about this share."""
    steps = max(1, round(tokens / (1.0 + 3.0 * share)))
    accepted = tokens - 1 - steps if tokens - 1 > steps else 0
    rejections = round(accepted * (1.0 - share) / share) if share > 0.0 else steps
    drafted = max(4 * steps, accepted)
    return observe(
        arm=Arm.SPECULATIVE, reason=Reason.SPECULATION_PAYS, draft_length=4, output_tokens=tokens, drafted=drafted,
        accepted=accepted, rejections=rejections, steps=steps, e2e_s=0.1 + 0.03 * steps, batch_draft_length=4.0,
        **fields,
    )  # fmt: skip


FLOATS = st.one_of(st.floats(), st.floats(0.001, 100.0))
COUNTS = st.one_of(st.integers(), st.integers(0, 500), st.just(10**400))


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_no_observation_raises_and_none_leaves_a_forecast_without_sense(data: st.DataObject) -> None:
    learner, evidence = Learner(), ArmComparisons()
    guess = RequestProfile(
        task="summarization", expected_output_tokens=100.0, rare_token_share=0.1, structured_output=False,
        prompt_tokens=100, confidence=0.9,
    )  # fmt: skip
    subject = Subject(
        pair="p", cold_class=data.draw(st.text(max_size=9)), temperature=0,
    )  # fmt: skip
    for _ in range(data.draw(st.integers(1, 8))):
        observation = Observation(
            subject=subject, request_class="c", arm=data.draw(st.sampled_from(Arm)),
            reason=data.draw(st.sampled_from(Reason)), draft_length=data.draw(COUNTS), pool="pool",
            status=data.draw(st.sampled_from(("ok", "cancelled"))), prompt_tokens=data.draw(COUNTS),
            output_tokens=data.draw(COUNTS), drafted=data.draw(COUNTS), accepted=data.draw(COUNTS),
            rejections=data.draw(COUNTS), steps=data.draw(COUNTS), ttft_s=data.draw(st.one_of(st.none(), FLOATS)),
            e2e_s=data.draw(FLOATS), load=data.draw(FLOATS), batch_draft_length=data.draw(FLOATS),
            price_per_gpu_hour=data.draw(st.one_of(st.none(), FLOATS)), time_s=data.draw(FLOATS),
            priced_s=data.draw(st.one_of(st.none(), FLOATS)),
        )  # fmt: skip
        learner.record(observation)
        evidence.record(observation)
    forecast = learner.forecast(ForecastQuery(
        subject, guess, plain_pool="pool", speculative_pool="pool", plain_load=3.0, speculative_load=3.0,
        max_tokens=None,
    ))  # fmt: skip
    assert 0.5 <= forecast.output_tokens.mean < 1e8
    if forecast.acceptance is not None:
        assert 0.0 < forecast.acceptance.mean < 1.0
    for estimate in (forecast.plain_tpot_s, forecast.step_base_s):
        assert 0.0 < estimate.mean < math.inf
        assert 0.0 < estimate.se < math.inf
    evidence.report("p")


@pytest.mark.parametrize(
    "nonsense",
    [
        {"status": "cancelled"}, {"e2e_s": -3.0}, {"e2e_s": 1e9}, {"e2e_s": math.nan}, {"ttft_s": 5.0},
        {"ttft_s": -0.1}, {"output_tokens": 0}, {"load": math.inf}, {"accepted": 3}, {"batch_draft_length": -1.0},
        {"price_per_gpu_hour": math.nan}, {"priced_s": math.nan}, {"priced_s": -1.0}, {"priced_s": 1e9},
    ],
)  # fmt: skip
def test_failed_and_impossible_answers_teach_nothing(nonsense: dict[str, object]) -> None:
    learner = Learner()
    for _ in range(5):
        learner.record(observe())
    before = forecast_for(learner, observe())
    for _ in range(5):
        learner.record(observe(**nonsense))
    assert forecast_for(learner, observe()) == before


def test_the_order_of_two_replicas_outcomes_matters_little() -> None:
    rng = random.Random(2)
    seen = [fast(round(150 * math.exp(rng.gauss(0, 0.25))), rng.uniform(0.75, 0.85)) for _ in range(40)]
    together, apart = Learner(), Learner()
    for observation in seen:
        together.record(observation)
    for observation in seen[::2] + seen[1::2]:
        apart.record(observation)
    one, two = (forecast_for(learner, observe()) for learner in (together, apart))
    assert one.acceptance is not None
    assert two.acceptance is not None
    assert one.output_tokens.mean == pytest.approx(two.output_tokens.mean, rel=0.1)
    assert one.acceptance.mean == pytest.approx(two.acceptance.mean, abs=0.02)
    assert one.step_base_s.mean == pytest.approx(two.step_base_s.mean, rel=0.1)


def test_observations_survive_the_wire() -> None:
    observation = fast(150, 0.8, key="k" * 16)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(observation), type=Observation) == observation


def test_a_class_is_learnt_from_request_to_forecast() -> None:
    learner = Learner()
    subject = subject_of(profile(), 0.0, pair="p", key_id="k")
    for _ in range(30):
        learner.record(msgspec.structs.replace(observe(output_tokens=14, steps=13, e2e_s=0.4), subject=subject))
    forecast = forecast_for(learner, msgspec.structs.replace(observe(), subject=subject))
    assert forecast.output_tokens.level is Level.CLASS
    assert forecast.output_tokens.mean == pytest.approx(14, rel=0.15)


def test_subjects_differ_by_class_temperature_key_and_adapter() -> None:
    base = subject_of(profile(), 0.7, pair="p")
    assert base == subject_of(profile(), 1.0, pair="p")
    others = [
        subject_of(profile(task=TaskType.CODE), 0.7, pair="p"),
        subject_of(profile(), 0.0, pair="p"),
        subject_of(profile(), 1.2, pair="p"),
        subject_of(profile(), 0.7, pair="q"),
        subject_of(profile(), 0.7, pair="p", key_id="k"),
        subject_of(profile(), 0.7, pair="p", adapter="sql"),
    ]
    assert len({base, *others}) == len(others) + 1
    assert "sql" not in repr(others)  # names are hashed


def test_keys_without_end_forget_the_ones_that_sent_nothing_for_longest() -> None:
    learner = Learner()
    for number in range(600):
        for key in ("steady", f"{number}"):
            learner.record(observe(key=key, output_tokens=14, steps=13, e2e_s=0.4))
    levels = [forecast_for(learner, observe(key=key)).output_tokens.samples for key in ("steady", "599", "0")]
    assert levels[0] > 10
    assert levels[1] == 1
    assert levels[2] > 20  # the votes of others


def test_a_key_with_adapters_without_end_forgets_its_own() -> None:
    learner = Learner()
    for key in ("steady", "other"):
        learner.record(observe(key=key))
    for number in range(600):
        seen = observe(key="hostile")
        subject = msgspec.structs.replace(seen.subject, adapter=f"{number:016x}")
        learner.record(msgspec.structs.replace(seen, subject=subject))
    levels = [forecast_for(learner, observe(key=key)).output_tokens.level for key in ("steady", "other")]
    assert levels == [Level.CLASS, Level.CLASS]
