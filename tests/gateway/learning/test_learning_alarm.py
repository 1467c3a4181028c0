"""The alarm of a class whose speculative answers become slower: soon on, and off where the control is as slow."""

from __future__ import annotations

import math
from random import Random

import pytest
from slipstream_core.types import Arm, Reason
from slipstream_gateway.decide.estimate import ArmComparisons, Learner

from tests.gateway.learning.samples import forecast_for, observe

FEW, SOME, MANY = 10, 40, 400


class Traffic:
    """One key's class, whose draws obey the alarm. Times vary by a quarter; `slow` multiplies those of an arm."""

    def __init__(self, **fields: str) -> None:
        self.learner, self._luck, self._fields = Learner(), Random(1), fields
        self.controls = 0

    def alarm(self, **fields: str) -> bool | None:
        return forecast_for(self.learner, observe(**self._fields | fields)).alarm

    def serve(self, count: int, *, slow: float = 1.0, control_slow: float = 1.0, shown: bool = True) -> None:
        """`shown`: the operator has shown the gain, so that an alarm of a class without answers has no effect."""
        for _ in range(count):
            alarm = self.alarm()
            alarmed = alarm or (alarm is None and not shown)
            is_control = self._luck.random() < (0.75 if alarmed else 0.02)
            self.controls += is_control
            times = math.exp(self._luck.gauss(0.0, 0.25)) * (control_slow if is_control else slow)
            arm, reason = Arm.SPECULATIVE, Reason.SPECULATION_PAYS
            if is_control:
                arm, reason = Arm.CONTROL, Reason.HOLD_BACK
            seen = observe(
                arm=arm, reason=reason, e2e_s=2.0 * times, ttft_s=None, alarmed=bool(alarmed), **self._fields
            )
            self.learner.record(seen)


@pytest.fixture
def traffic() -> Traffic:
    """A class that speculation makes a fifth faster, with a past."""
    traffic = Traffic()
    traffic.serve(MANY, slow=0.8)
    return traffic


def test_a_sudden_loss_raises_the_alarm_after_a_few_answers_until_it_is_taken_back(traffic: Traffic) -> None:
    traffic.serve(FEW, slow=2.0)
    assert traffic.alarm() is True
    traffic.serve(MANY, slow=2.0)
    assert traffic.alarm() is True


def test_a_smaller_loss_raises_the_alarm(traffic: Traffic) -> None:
    traffic.serve(SOME, slow=1.36)
    assert traffic.alarm() is True


def test_busy_servers_end_the_alarm_that_they_raise(traffic: Traffic) -> None:
    traffic.serve(FEW, slow=0.8 * 3.0, control_slow=3.0)
    assert traffic.alarm() is True
    traffic.serve(SOME, slow=0.8 * 3.0, control_slow=3.0)
    assert traffic.alarm() is False
    traffic.controls = 0
    traffic.serve(MANY, slow=0.8 * 3.0, control_slow=3.0)
    assert traffic.controls < MANY * 0.05, "what is as slow as before is no change any more"


def test_one_very_long_answer_is_no_change(traffic: Traffic) -> None:
    traffic.serve(1, slow=20.0)
    assert traffic.alarm() is False


def test_a_class_that_begins_is_compared_where_the_gain_is_not_shown() -> None:
    traffic = Traffic()
    assert traffic.alarm() is None
    traffic.serve(FEW, slow=2.0, shown=False)
    assert traffic.alarm() is None
    traffic.serve(MANY, slow=0.8, shown=False)
    assert traffic.alarm() is False


def test_a_class_with_a_shown_gain_is_watched_after_a_restart_of_the_gateway() -> None:
    traffic = Traffic()
    traffic.serve(SOME, slow=0.8)
    assert traffic.alarm() is False
    traffic.serve(SOME, slow=2.0)
    assert traffic.alarm() is True


def test_a_loss_that_began_with_the_class_keeps_its_alarm() -> None:
    traffic = Traffic()
    traffic.serve(MANY, slow=1.36, shown=False)
    assert traffic.alarm() is None
    assert traffic.controls > MANY / 2


def test_an_alarm_that_nobody_confirms_ends() -> None:
    traffic = Traffic()
    traffic.serve(2_500, slow=1.36, shown=False)
    assert traffic.alarm() is False


def test_the_alarm_is_the_classs_and_the_keys_own(traffic: Traffic) -> None:
    traffic.serve(FEW, slow=2.0)
    assert traffic.alarm() is True
    assert traffic.alarm(key="0123456789abcdef") is None
    assert traffic.alarm(cold_class="chat/short") is None


def test_answers_under_an_alarm_have_no_part_in_the_shown_means() -> None:
    comparisons = ArmComparisons()
    for alarmed, seconds in ((False, 1.0), (True, 9.0)):
        for arm, reason in ((Arm.SPECULATIVE, Reason.SPECULATION_PAYS), (Arm.CONTROL, Reason.HOLD_BACK)):
            comparisons.record(observe(arm=arm, reason=reason, e2e_s=seconds, alarmed=alarmed))
    [found] = comparisons.comparisons("p")["summarization/long"].values()
    assert (found.speculatives, found.controls) == (2, 2)
    assert (found.speculative.e2e_s.mean, found.control.e2e_s.mean) == (1.0, 1.0)
