"""Which outcomes are evidence for the comparison with the control."""

from __future__ import annotations

import pytest
from slipstream_core.types import Arm, Reason
from slipstream_operator.rollout.analysis.outcomes import Kind, kind_of

from tests.operator.policy_world import observation


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (Reason.SPECULATION_PAYS, Kind.ANSWER),
        (Reason.SPECULATION_MAY_PAY, Kind.ANSWER),
        (Reason.CLASS_ENABLED, Kind.ANSWER),
        (Reason.EXPLORATION, Kind.OTHER_ANSWER),
        (Reason.CLIENT_ASKED, Kind.OTHER_ANSWER),
    ],
)
def test_answers_that_speculate_by_the_policy_are_compared(reason: Reason, kind: Kind) -> None:
    assert kind_of(observation(time_s=1e9, reason=reason)) is kind


def test_answers_without_speculation_for_their_saving_are_declined() -> None:
    assert kind_of(observation(arm=Arm.PLAIN, time_s=1e9)) is Kind.DECLINED
    assert kind_of(observation(arm=Arm.CONTROL, time_s=1e9)) is Kind.ANSWER
