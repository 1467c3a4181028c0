"""The effect of an instruction's words on top of its class, so that requests of a new template profit from similar
ones.

A linear model over hashed words, learned online as a Kalman filter with a diagonal covariance (Graepel et al. 2010, eq.
8-10, for a Gaussian target). The gain of each word falls as it becomes known, but never to 0, so that it follows
changes. Its variance is the remaining uncertainty of a prompt's words.

All API keys of a pair teach one model. For each key the part of the weights that it taught itself is known; the part
that others taught counts for it up to a limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slipstream_gateway.decide.estimate.shrinkage import clipped

# A weight keeps at least this share of its prior variance, so that the gain follows changes.
_FLOOR = 0.02


class WordEffect(NamedTuple):
    """The sum of the words' weights, the sum of their slopes, and the variance of the first."""

    value: float
    slope: float
    variance: float


class Taught:
    """The weights and slopes that one key taught; None while no other key has taught any, because then all are its
    own."""

    __slots__ = ("slopes", "values")

    def __init__(self) -> None:
        self.values: list[float] | None = None
        self.slopes: list[float] | None = None


class WordEffects:
    """Weights and slopes of `buckets` hashed words, by all keys; a slope multiplies the covariate `dx` of a request.
    Where `slope_variance` is 0 there are no slopes."""

    def __init__(self, buckets: int, *, variance: float, slope_variance: float = 0.0) -> None:
        self.floor, self.slope_floor = _FLOOR * variance, _FLOOR * slope_variance
        self.values = [0.0] * buckets
        self.variances = [variance] * buckets
        self.slopes = [0.0] * (buckets if slope_variance else 0)
        self.slope_variances = [slope_variance] * buckets
        self._first: Taught | None = None
        self._is_shared = False

    def join(self) -> Taught:
        """The part of a key that begins to teach. The first key's part is stored separately from the second key on."""
        joining = Taught()
        if self._first is None and not self._is_shared:
            self._first = joining
            return joining
        if self._first is not None:
            self._first.values, self._first.slopes = self.values.copy(), self.slopes.copy()
            self._first, self._is_shared = None, True
        joining.values, joining.slopes = [0.0] * len(self.values), [0.0] * len(self.slopes)
        return joining


class KeyWords:
    """`shared` for one key: the part that other keys taught adds at most `limit` to the value of an instruction, and at
    most `slope_limit` to its slope, in either direction."""

    def __init__(self, shared: WordEffects, *, limit: float, slope_limit: float = 0.0) -> None:
        self._shared = shared
        self._limit, self._slope_limit = limit, slope_limit
        self._taught: Taught | None = None

    def predict(self, words: Sequence[int]) -> WordEffect:
        """The effect of the words, as far as it counts for this key."""
        shared, taught = self._shared, self._taught
        values, variances = shared.values, shared.variances
        value = variance = own_value = own_slope = 0.0
        for word in words:
            value += values[word]
            variance += variances[word]
        slope = _sum(shared.slopes, words) if shared.slopes else 0.0
        if taught is not None:
            if taught.values is None or taught.slopes is None:
                return WordEffect(value, slope, variance)
            own_value = _sum(taught.values, words)
            own_slope = _sum(taught.slopes, words) if taught.slopes else 0.0
        return WordEffect(
            own_value + clipped(value - own_value, self._limit),
            own_slope + clipped(slope - own_slope, self._slope_limit),
            variance,
        )

    def update(self, words: Sequence[int], dx: float, residual: float, noise: float) -> None:
        """Learns from `residual`, observed minus predicted, with variance `noise` around the truth."""
        if not words:
            return
        shared = self._shared
        if self._taught is None:
            self._taught = shared.join()
        variances, slope_variances = shared.variances, shared.slope_variances
        square, total = dx * dx, noise
        for word in words:
            total += variances[word] + square * slope_variances[word]
        step = residual / total
        _learn(words, 1.0, step, total, shared.floor, shared.values, variances, self._taught.values)
        if shared.slopes:
            _learn(words, dx, step, total, shared.slope_floor, shared.slopes, slope_variances, self._taught.slopes)


def _learn(
    words: Sequence[int], dx: float, step: float, total: float, floor: float, weights: list[float],
    variances: list[float], taught: list[float] | None,
) -> None:  # fmt: skip
    """One step of the filter for weights with a covariate `dx`."""
    square = dx * dx
    for word in words:
        before = variances[word]
        change = before * dx * step
        weights[word] += change
        if taught is not None:
            taught[word] += change
        after = before * (1.0 - square * before / total)
        variances[word] = after if after > floor else floor


def _sum(figures: Sequence[float], words: Sequence[int]) -> float:
    total = 0.0
    for word in words:
        total += figures[word]
    return total
