"""Running variances, and the calibration of the variance of expectations."""

from __future__ import annotations

_WINDOW = 100.0
_LOWEST, _HIGHEST = 0.2, 3.0


class RunningVariance:
    """A mean of squares with forgetting, shrunk to `prior`, which counts as `prior_samples`."""

    __slots__ = ("_prior", "_samples", "_squares", "value")

    def __init__(self, prior: float, prior_samples: float) -> None:
        self._samples = prior_samples
        self._prior = prior * prior_samples
        self._squares = 0.0
        self.value = prior

    def add(self, square: float) -> None:
        keep = 1.0 - 1.0 / _WINDOW
        self._prior *= keep
        self._squares = self._squares * keep + square
        self._samples = self._samples * keep + 1.0
        self.value = (self._prior + self._squares) / self._samples


class Calibration:
    """The factor that the variance of expectations must be multiplied by to match their errors."""

    __slots__ = ("_claimed", "_found", "factor")

    def __init__(self, prior_weight: float) -> None:
        """`prior_weight` is a sum of variances: the amount of data that moves the factor from 1."""
        self._claimed = self._found = prior_weight
        self.factor = 1.0

    def add(self, error: float, noise: float, variance: float) -> None:
        """Records an error `error` of an expectation of `variance`, of which `noise` is the variance of a single
        answer."""
        keep = 1.0 - 1.0 / _WINDOW
        self._claimed = self._claimed * keep + variance
        self._found = self._found * keep + error * error - noise
        self.factor = min(max(self._found / self._claimed, _LOWEST), _HIGHEST)
