"""The learner under what it must stand: floods, nonsense, and outcomes of other replicas in any order."""

from __future__ import annotations

import math
import random
import tracemalloc

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream_core.observation import Level, Observation, Subject
from slipstream_core.types import Arm, Reason, RequestProfile
from slipstream_gateway.decide.estimate import ArmComparisons, ForecastQuery, Learner

from tests.gateway.learning.samples import chat, forecast_for, observe, profile


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


@pytest.mark.slow
def test_a_flood_of_one_off_prompts_neither_grows_memory_nor_pushes_out_what_is_known() -> None:
    learner = Learner(max_fingerprints=500)
    known = [f"{index:016x}" for index in range(300)]
    for name in known * 5:
        learner.record(fast(200, 0.8, fingerprint=name))

    def flood(indices: range) -> None:
        for index in indices:
            name = f"one-off-{index:08}"
            learner.record(fast(5, 0.1, fingerprint=name, source=name))

    tracemalloc.start()
    flood(range(5_000))
    before = tracemalloc.get_traced_memory()[0]
    flood(range(5_000, 6_000))
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 300_000  # a thousand that stayed would take a megabyte
    for name in known:
        forecast = forecast_for(learner, observe(fingerprint=name))
        assert forecast.output_tokens.level is Level.FINGERPRINT
        assert forecast.output_tokens.mean == pytest.approx(200, rel=0.1)


@pytest.mark.parametrize("one_source", [True, False])
def test_a_flood_does_not_poison_its_class(one_source: bool) -> None:
    """Six sources send long, predictable answers; then one source, or ever new ones, send 5,000 of another kind."""
    rng, learner = random.Random(1), Learner(max_fingerprints=500)
    for index in range(240):
        tokens = round(200 * math.exp(rng.gauss(0, 0.2)))
        learner.record(fast(tokens, 0.8, fingerprint=f"{index % 60:016x}", source=f"{index % 6:016x}"))
    stranger = observe(fingerprint="a" * 16)
    before = forecast_for(learner, stranger)
    for index in range(5_000):
        name = f"one-off-{index:08}"
        source = "b" * 16 if one_source else name
        learner.record(fast(3, 0.05, fingerprint=name, source=source))
    after = forecast_for(learner, stranger)
    assert before.acceptance is not None
    assert after.acceptance is not None
    assert before.output_tokens.mean == pytest.approx(200, rel=0.2)
    assert after.output_tokens.mean > 0.4 * before.output_tokens.mean
    assert after.acceptance.mean > before.acceptance.mean - 0.2


def test_twenty_thousand_fingerprints_take_less_than_forty_megabytes() -> None:
    """Measured on 500 of them, each with all that a template can hold."""
    learner = Learner()
    seen = (observe(), fast(200, 0.8), fast(200, 0.8, temperature=2))
    learner.record(seen[0])
    learner.record(seen[1])
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for index in range(500):
        for one in seen:
            subject = msgspec.structs.replace(one.subject, fingerprint=f"{index:016x}")
            learner.record(msgspec.structs.replace(one, subject=subject))
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert used * 40 < 40_000_000


def test_settled_fingerprints_outlive_those_of_one_request() -> None:
    learner = Learner(max_fingerprints=10)
    for _ in range(3):
        learner.record(observe(fingerprint="c" * 16))
    for index in range(1_000):
        learner.record(observe(fingerprint=f"{index:016x}"))
    assert forecast_for(learner, observe(fingerprint="c" * 16)).output_tokens.level is Level.FINGERPRINT


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
        pair="p", fingerprint="f" * 16, source="5" * 16, cold_class=data.draw(st.text(max_size=9)), temperature=0,
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
        prompt_tokens=100, max_tokens=None,
    ))  # fmt: skip
    assert 0.5 <= forecast.output_tokens.mean < 1e8
    if forecast.acceptance is not None:
        assert 0.0 < forecast.acceptance.mean < 1.0
    for estimate in (forecast.plain_tpot_s, forecast.step_base_s, forecast.plain_ttft_s, forecast.speculative_ttft_s):
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


def test_a_template_is_learnt_from_request_to_forecast() -> None:
    learner = Learner()
    for order in range(10):
        request = chat(
            f"What is the status of order {order * 7_919} in one line?\n\nRecords:\nOrder {order}: on its way"
        )
        subject = learner.subject(request, profile(), pair="p", key_id="k")
        learner.record(msgspec.structs.replace(observe(output_tokens=14, steps=13, e2e_s=0.4), subject=subject))
    request = chat("What is the status of order 99 in one line?\n\nRecords:\nOrder 99: lost")
    subject = learner.subject(request, profile(), pair="p", key_id="k")
    forecast = forecast_for(learner, msgspec.structs.replace(observe(), subject=subject))
    assert forecast.output_tokens.level is Level.FINGERPRINT
    assert forecast.output_tokens.mean == pytest.approx(14, rel=0.15)
