"""Running variances."""

from __future__ import annotations

_WINDOW = 100.0


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
