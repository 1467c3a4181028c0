"""The alarm of a class whose speculative answers became slower, or whose first ones are not compared yet.

The control is a few percent of the answers, and shows a sudden loss late. Speculative answers show it after a few: a
CUSUM (Page 1954) compares each answer's time per token with the mean of the latest ones. Busy servers have the same
effect, so the alarm proves nothing, and only makes the control most of the requests. The control's answers of this time
then decide: the alarm ends where they show that speculation is not slower. If it is, the operator finds it soon.
"""

from __future__ import annotations

import math

from slipstream_core.observation import Observation
from slipstream_core.types import TREATMENT, Arm

from slipstream_gateway.decide.estimate.moments import Sample
from slipstream_gateway.decide.estimate.running import RunningMean

# On a logarithmic scale: the sudden change that the CUSUM looks for, and the loss that must be unlikely at the end.
_CHANGE = math.log(1.65)
_LOSS = math.log(1.1)
# Log likelihood ratios. A higher one for the alarm finds losses later; a lower one doubles the control's share.
_ALARM_AT, _END_AT = 12.0, -1.5
_WINDOW = 50.0
# Of the variance of an answer's time per token: the prior, its weight in answers, the window and the least value.
_VARIANCE, _PRIOR_SAMPLES, _VARIANCE_KEEP, _LEAST_VARIANCE = 0.0625, 10.0, 0.99, 0.0225
_MOST_SIGMAS = 3.0  # a few very long answers are no change
_MOST_ANSWERS = 2_000  # of an alarm
_FIRST_ANSWERS = 20.0  # speculative ones, which begin the watch where a class has no control of an alarm


class SlowdownAlarm:
    """The alarm of one API key's class. `is_on` is None until the first answers were compared."""

    __slots__ = ("_control", "_evidence", "_mean", "_speculative", "_usual", "_variance", "is_on")

    def __init__(self) -> None:
        self.is_on: bool | None = None
        self._variance = RunningMean(_VARIANCE, _PRIOR_SAMPLES, keep=_VARIANCE_KEEP)
        self._mean = self._evidence = 0.0
        self._begin()

    def learn(self, seen: Observation) -> None:
        """Records an answer; those of neither arm are ignored."""
        is_control = seen.arm is Arm.CONTROL
        if not is_control and (seen.arm is not Arm.SPECULATIVE or seen.reason not in TREATMENT):
            return
        x = math.log(seen.e2e_s / seen.output_tokens)
        if self.is_on is not False:
            self._test(x, is_control=is_control, alarmed=seen.alarmed)
        elif not is_control:
            self._watch(x)

    def _begin(self) -> None:
        self._usual, self._speculative, self._control = Sample(), Sample(), Sample()

    def _watch(self, x: float) -> None:
        """Looks for a change, which begins the alarm."""
        surprise, variance = x - self._mean, max(self._variance.mean, _LEAST_VARIANCE)
        counted = min(surprise, _MOST_SIGMAS * math.sqrt(variance))
        self._evidence = max(self._evidence, 0.0) + _CHANGE / variance * (counted - _CHANGE / 2.0)
        if self._evidence >= _ALARM_AT:
            self.is_on = True
            self._begin()
            return
        self._variance.add(counted * counted)
        self._mean += counted / _WINDOW

    def _test(self, x: float, *, is_control: bool, alarmed: bool) -> None:
        """Compares the arms among the answers that were drawn under the alarm, and ends it."""
        fast, slow, usual = self._speculative, self._control, self._usual
        if alarmed:
            (slow if is_control else fast).add(x)
        elif not is_control:
            usual.add(x)
        is_over = fast.n + slow.n + usual.n >= _MOST_ANSWERS or self._is_refuted()
        if is_over or (self.is_on is None and usual.n >= _FIRST_ANSWERS):
            self.is_on, self._evidence = False, 0.0
            self._mean = fast.mean if fast.n else usual.mean

    def _is_refuted(self) -> bool:
        """Whether speculation is hardly slower, or not at all."""
        fast, slow = self._speculative, self._control
        if not fast.n or not slow.n:
            return False
        within = fast.squares + slow.squares + _PRIOR_SAMPLES * self._variance.mean
        variance = within / (fast.n + slow.n - 2.0 + _PRIOR_SAMPLES)
        weight = fast.n * slow.n / (fast.n + slow.n)
        return weight * _LOSS / variance * (fast.mean - slow.mean - _LOSS / 2.0) <= _END_AT
