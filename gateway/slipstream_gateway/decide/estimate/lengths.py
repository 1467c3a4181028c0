"""Running estimate of one template's output length: log length against log prompt length, with forgetting."""

from __future__ import annotations

import math
from typing import NamedTuple

from slipstream_gateway.decide.estimate.drift import KEPT_SAMPLES, SETTLED_SAMPLES, has_changed, surprise

_KEEP = 1.0 - 1.0 / 30.0
# Between templates, the slope of length over material: 0 for a summary in fixed sections, 1 for a translation.
_SLOPE_VARIANCE = 0.4**2
# The prior of the spread counts as this many observations.
_SPREAD_SAMPLES = 3.0


class LengthPrior(NamedTuple):
    """The prior of a template: log length at log prompt length `x`, its variance, and the variance of a single answer
    around its template's mean. Its slope over `x` is 0."""

    x: float
    mean: float
    variance: float
    spread: float


class Length:
    """Weighted moments of (x, y) = (log prompt tokens, log output tokens); `fit` shrinks them to a prior."""

    __slots__ = (
        "_memory", "_sxx", "_sxy", "_syy", "_x", "_y", "mean", "samples", "slope", "slope_variance", "spread",
        "variance", "x",
    )  # fmt: skip

    def __init__(self) -> None:
        self.samples = 0.0
        self._x = self._y = self._sxx = self._sxy = self._syy = 0.0
        self._memory = 0.0
        self.mean = self.variance = self.slope = self.slope_variance = self.spread = self.x = 0.0

    def update(self, x: float, y: float, prior: LengthPrior) -> None:
        """Records one answer and refits. `prior` is the expectation without this template's own answers."""
        if self.samples >= SETTLED_SAMPLES:
            self._memory = surprise(self._memory, (y - self.expect(x)) / math.sqrt(self.spread + self.variance))
            if has_changed(self._memory):
                self._cut()
        samples = self.samples * _KEEP + 1.0
        dx, dy = x - self._x, y - self._y
        share = 1.0 / samples
        self._x += share * dx
        self._y += share * dy
        rest = 1.0 - share
        self._sxx = _KEEP * self._sxx + rest * dx * dx
        self._sxy = _KEEP * self._sxy + rest * dx * dy
        self._syy = _KEEP * self._syy + rest * dy * dy
        self.samples = samples
        self._fit(prior)

    def expect(self, x: float) -> float:
        """The mean log length at log prompt length `x`."""
        return self.mean + self.slope * (x - self.x)

    def variance_at(self, x: float) -> float:
        """The variance of the mean at log prompt length `x`: farther from the data, the slope counts more."""
        dx = x - self.x
        return self.variance + dx * dx * self.slope_variance

    def _cut(self) -> None:
        share = min(1.0, KEPT_SAMPLES / self.samples)
        self.samples *= share
        self._sxx *= share
        self._sxy *= share
        self._syy *= share
        self._memory = 0.0

    def _fit(self, prior: LengthPrior) -> None:
        """Normal posterior of slope and mean at the mean prompt length; the spread first, because both depend on it."""
        n = self.samples
        spread = self.spread if n > 1.0 else prior.spread
        slope = self._sxy / (self._sxx + spread / _SLOPE_VARIANCE)
        residual = max(self._syy - slope * self._sxy, 0.0)
        spread = (prior.spread * _SPREAD_SAMPLES + residual) / (_SPREAD_SAMPLES + max(n - 1.0, 0.0))
        weight = spread / _SLOPE_VARIANCE
        self.slope_variance = spread / (self._sxx + weight)
        self.slope = self._sxy / (self._sxx + weight)
        own = n / spread
        before = 1.0 / prior.variance
        self.variance = 1.0 / (own + before)
        self.mean = (own * self._y + before * prior.mean) * self.variance
        self.spread = spread
        self.x = self._x
