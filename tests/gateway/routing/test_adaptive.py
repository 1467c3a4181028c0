"""Decisions on requests whose server chooses how many draft tokens it verifies in each step."""

from __future__ import annotations

from typing import Any

import pytest
from slipstream_core.types import Arm, Decision, Reason
from slipstream_gateway.decide.route import NO_DRAWS, DecisionInputs, Health, decide

from tests.gateway.routing import cases
from tests.gateway.routing.cases import forecast, profile, request

CHOOSES = Health(adaptive=True)


def run(
    found: Any, *, pressure: float = 0.0, health: Health = CHOOSES, temperature: float = 0.0, **policy: Any
) -> Decision:
    return decide(
        DecisionInputs(
            request(temperature=temperature), profile(), cases.route(policy=policy), forecast=found, draws=NO_DRAWS,
            health=health, pressure=pressure,
        )
    )  # fmt: skip


def test_a_step_is_counted_to_verify_few_draft_tokens_of_the_maximum() -> None:
    decision = run(forecast())
    assert (decision.draft_length, decision.step_draft_tokens, decision.adaptive) == (6, 2, True)
    assert decision.numbers["tokens_per_step"] == pytest.approx(sum(0.8**power for power in range(7)))
    assert decision.numbers["speculative_tpot_s"] == pytest.approx(
        (0.012 + 2 * 0.002) / sum(0.8**power for power in range(7))
    )


def test_a_fixed_draft_length_is_verified_whole() -> None:
    decision = run(forecast(), health=Health())
    assert (decision.draft_length, decision.step_draft_tokens, decision.adaptive) == (4, 4, False)


def test_a_maximum_below_the_counted_draft_tokens_is_counted_itself() -> None:
    assert run(forecast(), draftTokens=1).step_draft_tokens == 1


@pytest.mark.parametrize(
    ("doubt", "decide_by", "expected"),
    [
        (0.3, "expected", Reason.SPECULATION_MAY_PAY),  # may pay: a try costs little
        (0.001, "expected", Reason.BREAK_EVEN),  # does not pay for sure
        (0.3, "cautious", Reason.BREAK_EVEN),
    ],
)
def test_an_uncertain_loss_is_tried_unless_the_policy_is_cautious(
    doubt: float, decide_by: str, expected: Reason
) -> None:
    loses = forecast(acceptance=0.3, step_base_s=0.0125, doubt=doubt)
    decision = run(loses, decision=decide_by)
    assert float(decision.numbers["saving_s"]) <= 0
    assert decision.reason is expected
    bound = "saving_lower_bound_s" if decide_by == "cautious" else "saving_upper_bound_s"
    assert bound in decision.numbers
    assert "may save" in decision.detail or expected is Reason.BREAK_EVEN
    assert run(loses, decision=decide_by, health=Health()).arm is Arm.PLAIN


@pytest.mark.parametrize(
    ("draft", "expected"),
    [
        ({"kind": "ngram"}, Reason.SPECULATION_MAY_PAY),  # nothing has to read the prompt first
        ({"kind": "model", "source": "./draft"}, Reason.BREAK_EVEN),
    ],
)
def test_a_short_answer_is_tried_unless_a_draft_model_reads_its_prompt(draft: dict[str, str], expected: Reason) -> None:
    loses = forecast(output_tokens=16.0, acceptance=0.3, step_base_s=0.0125, doubt=0.3)
    inputs = DecisionInputs(
        request(temperature=0.0),
        profile(),
        cases.route(pair={"draft": draft}),
        forecast=loses,
        draws=NO_DRAWS,
        health=CHOOSES,
        pressure=0.0,
    )
    assert decide(inputs).reason is expected


def test_pressure_does_not_shorten_what_the_server_allocates_itself() -> None:
    assert run(forecast(), pressure=0.85).draft_length == 6
    assert run(forecast(doubt=3.0), pressure=1.0).arm is Arm.SPECULATIVE
    assert run(forecast(doubt=3.0), pressure=1.0, health=Health()).reason is Reason.PRESSURE
    assert run(forecast(doubt=3.0), pressure=0.85, health=Health()).draft_length < 4
