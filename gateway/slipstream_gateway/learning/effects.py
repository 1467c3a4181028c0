"""What an instruction's words add to its class: how requests of a template never seen profit from similar ones.

A linear model over hashed words, learnt online as a Kalman filter with a diagonal covariance (Graepel et al. 2010,
eq. 8-10, for a Gaussian target): the gain of each word falls as it becomes known, and never to nothing, so that it
follows changes. Its variance is what the words of a prompt leave open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# A weight keeps at least this share of its prior variance: the gain that follows changes.
_FLOOR = 0.02


class Effect(NamedTuple):
    """The sum of the words' weights, the sum of their slopes, and the variance of the first."""

    value: float
    slope: float
    variance: float


class WordEffects:
    """Weights and slopes of `buckets` hashed words; a slope multiplies the covariate `dx` of a request."""

    def __init__(self, buckets: int, *, variance: float, slope_variance: float = 0.0) -> None:
        self._variance, self._slope_variance = variance, slope_variance
        self._values = [0.0] * buckets
        self._variances = [variance] * buckets
        self._slopes = [0.0] * buckets
        self._slope_variances = [slope_variance] * buckets

    def predict(self, words: Sequence[int]) -> Effect:
        value = slope = variance = 0.0
        values, slopes, variances = self._values, self._slopes, self._variances
        for word in words:
            value += values[word]
            slope += slopes[word]
            variance += variances[word]
        return Effect(value, slope, variance)

    def update(self, words: Sequence[int], dx: float, residual: float, noise: float) -> None:
        """Learn from `residual`, what was seen minus what was predicted, of variance `noise` around the truth."""
        if not words:
            return
        variances, slope_variances = self._variances, self._slope_variances
        square = dx * dx
        total = noise
        for word in words:
            total += variances[word] + square * slope_variances[word]
        step = residual / total
        floor, slope_floor = _FLOOR * self._variance, _FLOOR * self._slope_variance
        for word in words:
            before = variances[word]
            self._values[word] += before * step
            after = before * (1.0 - before / total)
            variances[word] = after if after > floor else floor
        if not slope_floor:
            return
        for word in words:
            before = slope_variances[word]
            self._slopes[word] += before * dx * step
            after = before * (1.0 - square * before / total)
            slope_variances[word] = after if after > slope_floor else slope_floor
