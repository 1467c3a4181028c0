"""A reason and the predicted saving beside it agree, and seconds are named only after a measurement."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream_core.types import Arm, Decision, Reason
from slipstream_gateway.decide.route import NO_DRAWS, DecisionInputs, Health, decide

from tests.gateway.routing import cases
from tests.gateway.routing.cases import forecast, profile, request

BY_NUMBER = {Reason.SPECULATION_PAYS, Reason.SPECULATION_MAY_PAY, Reason.BREAK_EVEN}


def run(*, adaptive: bool, timed: bool = True, doubt: float = 0.02, **means: float) -> Decision:
    found = msgspec.structs.replace(forecast(doubt=doubt, **means), timed=timed)
    return decide(
        DecisionInputs(
            request(temperature=0.0), profile(), cases.route(), forecast=found, draws=NO_DRAWS,
            health=Health(adaptive=adaptive),
        )
    )  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    adaptive=st.booleans(),
    doubt=st.floats(0.001, 1.0),
    output_tokens=st.floats(1.0, 400.0),
    acceptance=st.floats(0.05, 0.95),
    step_base_s=st.floats(0.005, 0.03),
)
def test_the_reason_agrees_with_the_sign_of_the_saving(
    adaptive: bool, doubt: float, output_tokens: float, acceptance: float, step_base_s: float
) -> None:
    decision = run(
        adaptive=adaptive, doubt=doubt, output_tokens=output_tokens, acceptance=acceptance, step_base_s=step_base_s
    )
    assert decision.reason in BY_NUMBER
    assert decision.saving_s is not None
    margin_s = float(decision.numbers["margin_s"])
    assert (decision.saving_s > margin_s) is (decision.reason is Reason.SPECULATION_PAYS)
    assert (decision.arm is Arm.SPECULATIVE) is (decision.reason is not Reason.BREAK_EVEN)
    if decision.reason is Reason.SPECULATION_MAY_PAY:
        assert adaptive
        assert float(decision.numbers["saving_upper_bound_s"]) > margin_s
        assert "may save" in decision.detail


def test_without_a_measurement_a_saving_is_a_share() -> None:
    decision = run(adaptive=True, timed=False)
    assert decision.reason is Reason.SPECULATION_PAYS
    assert decision.saving_s is None
    assert 0.0 < float(decision.numbers["saving_share"]) < 1.0
    assert not {"saving_s", "saving_se_s", "plain_s", "speculative_s", "margin_s"} & decision.numbers.keys()
    assert decision.detail.endswith("% of the time; no answer has been timed yet")


def test_without_a_measurement_a_loss_is_a_share() -> None:
    decision = run(adaptive=False, timed=False, acceptance=0.1)
    assert decision.reason is Reason.BREAK_EVEN
    assert decision.saving_s is None
    assert " ms" not in decision.detail
    assert decision.detail.endswith("is required; no answer has been timed yet")
