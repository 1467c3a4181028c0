"""Times to first token of one pool of servers: a curve over load and prompt for all requests, and the extra time of
speculation.

Both arms wait in one queue and have the target process the same prompt, so that most of the time is common, and a busy
queue's noise must not appear as a difference between the arms. A draft processes the prompt too: extra = a + b·x
seconds for x thousand tokens, at any load. It is a ridge regression with forgetting on the time of speculative answers
beyond the curve, each weighted by its expected time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from slipstream_gateway.decide.estimate import priors
from slipstream_gateway.decide.estimate.curves import Curve

_WINDOW = 200.0
_NOISE_VARIANCE = 0.4**2
# a and b without data: 0, within this many plain steps of the target. A draft processes a prompt much faster than that;
# a queue's wait, which varies more between requests, is not part of it.
_EXTRA_STEPS = 2.0
_CLIP = 1.5


class Expected(NamedTuple):
    """Seconds with their standard error, and the number of observations at this load."""

    mean: float
    se: float
    samples: float


class FirstToken:
    """Learns from both arms."""

    def __init__(self) -> None:
        self.curve = Curve(priors.FIRST_TOKEN)
        self._extra = _Extra()

    def expect(self, load: float, thousands: float, step_s: float, *, speculative: bool) -> Expected:
        """The time to first token at `load` requests in flight, for a prompt of so many thousand tokens, where a plain
        step takes `step_s`."""
        line = self.curve.line(load)
        common, se = line.at(thousands), math.hypot(line.base_se, line.slope_se * thousands)
        if not speculative:
            return Expected(common, se, line.samples)
        extra, extra_se = self._extra.at(thousands, step_s)
        return Expected(max(common + extra, 0.1 * common), math.hypot(se, extra_se), line.samples)

    def learn(self, load: float, thousands: float, step_s: float, ttft_s: float, *, speculative: bool) -> None:
        """Records a time to first token."""
        common = self.curve.line(load).at(thousands)
        if speculative:
            extra, _ = self._extra.at(thousands, step_s)
            self._extra.update(thousands, ttft_s - common, common)
            ttft_s = max(ttft_s - extra, 0.1 * common)
        self.curve.update(load, thousands, ttft_s, common, ttft_s)


class _Extra:
    """Sums of a regression in units of the expected time, in which the noise is the same for all."""

    def __init__(self) -> None:
        self._s11 = self._s12 = self._s22 = self._t1 = self._t2 = 0.0

    def at(self, thousands: float, step_s: float) -> tuple[float, float]:
        """The extra seconds and their standard error."""
        prior = 1.0 / (_EXTRA_STEPS * step_s) ** 2
        a11 = self._s11 / _NOISE_VARIANCE + prior
        a12 = self._s12 / _NOISE_VARIANCE
        a22 = self._s22 / _NOISE_VARIANCE + prior
        determinant = a11 * a22 - a12 * a12
        b1, b2 = self._t1 / _NOISE_VARIANCE, self._t2 / _NOISE_VARIANCE
        constant, slope = (a22 * b1 - a12 * b2) / determinant, (a11 * b2 - a12 * b1) / determinant
        variance = (a22 - 2.0 * thousands * a12 + thousands * thousands * a11) / determinant
        return constant + slope * thousands, math.sqrt(max(variance, 0.0))

    def update(self, thousands: float, extra_s: float, level: float) -> None:
        keep, weight = 1.0 - 1.0 / _WINDOW, 1.0 / (level * level)
        extra_s = max(-_CLIP * level, min(_CLIP * level, extra_s))
        self._s11 = keep * self._s11 + weight
        self._s12 = keep * self._s12 + weight * thousands
        self._s22 = keep * self._s22 + weight * thousands * thousands
        self._t1 = keep * self._t1 + weight * extra_s
        self._t2 = keep * self._t2 + weight * thousands * extra_s
