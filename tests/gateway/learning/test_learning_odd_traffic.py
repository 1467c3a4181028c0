"""Traffic that nobody plans for: answers all alike, answers cut short, figures out of this world."""

from __future__ import annotations

import math
from typing import Any

import pytest
from slipstream_core.types import Arm, Reason
from slipstream_gateway.decide.estimate import ArmComparisons, Learner

from tests.gateway.learning.samples import forecast_for, observe


@pytest.fixture
def learner() -> Learner:
    return Learner()


def test_a_class_whose_answers_are_all_alike_goes_on_learning(learner: Learner) -> None:
    one_label = {"cold_class": "classification/short", "output_tokens": 3, "steps": 2, "e2e_s": 0.2}
    for _ in range(4000):
        learner.record(observe(**one_label))
    seen = forecast_for(learner, observe(cold_class="classification/short"))
    assert seen.output_tokens.mean == pytest.approx(3.0, rel=0.1)
    assert seen.output_tokens.se > 0.0


def test_answers_cut_by_their_limit_do_not_make_their_kind_short(learner: Learner) -> None:
    for _ in range(20):
        learner.record(observe(output_tokens=300, steps=299, e2e_s=6.1))
    before = forecast_for(learner, observe()).output_tokens.mean
    for _ in range(20):
        learner.record(observe(output_tokens=1, steps=0, e2e_s=0.11, cut=True))
    assert forecast_for(learner, observe()).output_tokens.mean == pytest.approx(before, rel=0.05)
    for _ in range(60):  # ended by themselves: the prompt has changed
        learner.record(observe(output_tokens=10, steps=9, e2e_s=0.3))
    assert forecast_for(learner, observe()).output_tokens.mean < 0.2 * before


def test_a_kind_of_which_every_answer_is_cut_is_expected_as_long_as_its_class(learner: Learner) -> None:
    new = forecast_for(learner, observe()).output_tokens
    for _ in range(5):
        learner.record(observe(output_tokens=64, steps=63, e2e_s=1.4, cut=True))
    seen = forecast_for(learner, observe()).output_tokens
    assert seen.mean == pytest.approx(new.mean)
    assert seen.level is new.level


@pytest.mark.parametrize(
    "odd",
    [
        {"e2e_s": 1e-160, "ttft_s": 1e-160},
        {"e2e_s": 1e-9, "ttft_s": None},
        {"e2e_s": math.inf},
        {"load": math.nan},
        {"cold_class": "no/such"},
        {"request_class": "<script>"},
        {"pool": "p" * 10_000},
    ],
)
def test_an_outcome_out_of_this_world_changes_nothing(learner: Learner, odd: dict[str, Any]) -> None:
    evidence = ArmComparisons()
    for arm, reason in ((Arm.SPECULATIVE, Reason.SPECULATION_PAYS), (Arm.CONTROL, Reason.HOLD_BACK)):
        for _ in range(5):
            for sink in (learner, evidence):
                sink.record(observe(arm=arm, reason=reason))
    before, report = forecast_for(learner, observe()), evidence.report("p")
    for _ in range(5):
        for sink in (learner, evidence):
            sink.record(observe(arm=Arm.SPECULATIVE, reason=Reason.SPECULATION_PAYS, **odd))
    assert forecast_for(learner, observe()) == before
    assert evidence.report("p") == report


def test_classes_that_do_not_exist_teach_nothing(learner: Learner) -> None:
    before = forecast_for(learner, observe())
    for index in range(500):
        learner.record(observe(cold_class=f"made-up/{index}", request_class="summarization/long"))
    assert forecast_for(learner, observe()) == before
