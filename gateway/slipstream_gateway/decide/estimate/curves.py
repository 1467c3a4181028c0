"""The times of a server's steps by load and draft length, learned from its traffic.

y = t·(1 + k·x) at each load, as a Bayesian regression with forgetting. x is the mean draft length in the batch, and t·k
the cost of a draft token per request. Loads are rounded to powers of two. A load with little data uses its neighbours,
then what other API keys measured, and all use a general prior.

Exponential forgetting alone takes a window's length to follow a change of prompt, model or server. A short memory of
the standardised surprises separates a change (several on the same side) from an outlier (one); after a change the past
is cut to a few observations.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from slipstream_gateway.decide.estimate.by_key import ByKey, median_near

WINDOW = 64.0
_MAX_OCTAVE = 10
# Standard deviations between neighbouring powers of two: of t as a share, and of k.
_OCTAVE_SPREAD, _OCTAVE_SLOPE_SPREAD = 0.35, 0.05
# Observations are clipped at this many standard deviations.
_CLIP = 4.0
# Standard deviation of the base relative to a relative's prediction.
_RELATIVE_SPREAD = 0.35
# Standard deviations between API keys: of the base as a share, and of k.
_KEYS_SPREAD, _KEYS_SLOPE_SPREAD = 0.15, 0.05
_SMALLEST_BASE = 0.05
# Once a curve or a relative has any data, the general prior's base is ignored.
_VAGUE = 100.0
# The prior of a load is recomputed when the updates that it is based on, its key's or the others', have grown by this
# factor: a load with requests of its own hardly depends on it.
_STALENESS = 1.125
# Of the memory of surprises: the share of the last one, its largest value, and the limit. For independent standard
# normal surprises the memory has standard deviation 0.38: the limit is four of them.
_SURPRISE_SHARE, _MAX_SURPRISE, _CHANGED = 0.25, 3.0, 1.5
# The minimum number of observations before a surprise counts, and the weight of the past after a change.
_SETTLED_SAMPLES, _KEPT_SAMPLES = 2.0, 0.5


class Line(NamedTuple):
    """y = base + slope·x with standard errors, in seconds; `samples` at this load."""

    base: float
    base_se: float
    slope: float
    slope_se: float
    samples: float

    def at(self, x: float) -> float:
        return self.base + self.slope * x

    def scaled(self, ratio: float, variance: float) -> Line:
        """All times multiplied by `ratio`, whose relative variance adds to the base's."""
        base_se = math.hypot(self.base_se / self.base, math.sqrt(variance)) * ratio * self.base
        return Line(ratio * self.base, base_se, ratio * self.slope, ratio * self.slope_se, self.samples)


class CurvePrior(NamedTuple):
    """t and its relative standard deviation, k and its standard deviation, and the relative noise of one request."""

    base: float
    base_spread: float
    k: float
    k_spread: float
    noise: float


class _Belief(NamedTuple):
    """log t and k with their variances."""

    log_base: float
    base_variance: float
    k: float
    k_variance: float


class _Load:
    """Weighted sums of the observations at one load, the `memory` of surprises, and the last results: `line`, the
    `expected` prior as of `expected_at` updates of the curve and `others_at` of other keys, and `own`, the estimate
    that other loads use."""

    __slots__ = (
        "count", "expected", "expected_at", "line", "memory", "others_at", "own", "sx", "sxx", "sxy", "sy",
    )  # fmt: skip

    def __init__(self) -> None:
        self.count = self.sx = self.sy = self.sxx = self.sxy = self.memory = 0.0
        self.line: Line | None = None
        self.own: _Belief | None = None
        self.expected: _Belief | None = None
        self.expected_at = self.others_at = 0

    def add(self, x: float, y: float, weight: float) -> None:
        self.scale(1.0 - weight / WINDOW)
        self.line = self.own = None
        self.count += weight
        self.sx += weight * x
        self.sy += weight * y
        self.sxx += weight * x * x
        self.sxy += weight * x * y

    def scale(self, share: float) -> None:
        self.count *= share
        self.sx *= share
        self.sy *= share
        self.sxx *= share
        self.sxy *= share


class Curve:
    """Times of one API key's requests on one pool of servers, by load. `version` counts the requests, `weight` is the
    sum of their weights. The median of the other keys' curves is a prior."""

    def __init__(self, prior: CurvePrior, key: str = "", curves: ByKey[Curve] | None = None) -> None:
        self._key, self._curves = key, curves
        self._noise_variance = prior.noise**2
        self._prior_belief = _Belief(math.log(prior.base), prior.base_spread**2, prior.k, prior.k_spread**2)
        self._relatives: list[tuple[Curve, float]] = []
        self._loads = [_Load() for _ in range(_MAX_OCTAVE + 1)]
        self.version = 0
        self.weight = 0.0

    @property
    def changes(self) -> int:
        """The number of requests of this curve and of its relatives."""
        return self.version + sum(relative.version for relative, _ in self._relatives)

    @property
    def others(self) -> list[Curve]:
        """The other keys' curves; empty if they are too few to count."""
        return self._curves.others(self._key) if self._curves is not None else []

    def lean_on(self, relative: Curve, *, ratio: float = 1.0) -> None:
        """`relative` is a curve whose base times `ratio` is likely equal to this one's: it is used while this curve has
        little data. May be mutual; the same one counts once."""
        if relative is self or any(known is relative for known, _ in self._relatives):
            return
        self._relatives.append((relative, math.log(ratio)))
        for load in self._loads:
            load.expected = None

    def line(self, load: float) -> Line:
        """The prediction at `load` requests in flight."""
        octave = _octave(load)
        at, changes = self._loads[octave], self.changes
        expected, others = at.expected, self._curves.version if self._curves is not None else 0
        if expected is None or changes > at.expected_at or others > at.others_at:
            expected = at.expected = self._expected(octave)
            at.expected_at, at.others_at = int(changes * _STALENESS), int(others * _STALENESS)
            at.line = None
        if at.line is None:
            at.line = self._solve(at, expected)
        return at.line

    def update(self, load: float, x: float, y: float, expected: float, weight: float = 1.0) -> None:
        """Records a request with `y` seconds at `x`, where the line predicted `expected`; `weight` in (0, 1] is below 1
        for a noisier one."""
        self._learn(self._loads[_octave(load)], x, y, weight, expected)
        self.weight += weight
        self.version += 1
        if self._curves is not None:
            self._curves.record(self._key, self)

    def _learn(self, load: _Load, x: float, y: float, weight: float, expected: float) -> None:
        if load.count >= _SETTLED_SAMPLES:
            relative, deviation = (y - expected) / expected, math.sqrt(self._noise_variance / weight)
            surprise = max(-_MAX_SURPRISE, min(_MAX_SURPRISE, relative / deviation))
            load.memory += _SURPRISE_SHARE * (surprise - load.memory)
            if abs(load.memory) >= _CHANGED:
                load.scale(min(1.0, _KEPT_SAMPLES / load.count))
                load.memory = 0.0
            y = expected * (1.0 + max(-_CLIP * deviation, min(_CLIP * deviation, relative)))
        load.add(x, y, weight)

    def _expected(self, octave: int) -> _Belief:
        """The prediction for a load from the nearest loads on either side, a relative, other keys and the general
        prior."""
        beliefs = self._nearby(octave)
        for relative, log_ratio in self._relatives:
            if relative.version > 0:
                line = relative._alone(octave)
                variance = (line.base_se / line.base) ** 2 + _RELATIVE_SPREAD**2
                beliefs.append(_Belief(math.log(line.base) + log_ratio, variance, 0.0, math.inf))
        own, lines = _combined(beliefs), [other._alone(octave) for other in self.others]
        if not lines:
            return own
        log_base = median_near([math.log(line.base) for line in lines], own.log_base)
        k = median_near([line.slope / line.base for line in lines], own.k)
        return _combined([own, _Belief(log_base, _KEYS_SPREAD**2, k, _KEYS_SLOPE_SPREAD**2)])

    def _alone(self, octave: int) -> Line:
        """The prediction at `2 ** octave` requests in flight from this curve's requests alone."""
        return self._solve(self._loads[octave], _combined(self._nearby(octave)))

    def _nearby(self, octave: int) -> list[_Belief]:
        """The nearest loads on either side with data, a random walk away; without any, the general prior."""
        beliefs = []
        for step in (-1, 1):
            at = octave + step
            while 0 <= at <= _MAX_OCTAVE and self._loads[at].count == 0.0:
                at += step
            if 0 <= at <= _MAX_OCTAVE:
                beliefs.append(_widened(self._own(self._loads[at]), abs(at - octave)))
        if beliefs:
            return beliefs
        return [self._prior_belief._replace(base_variance=_VAGUE) if self.changes else self._prior_belief]

    def _own(self, load: _Load) -> _Belief:
        """The estimate from a load's own requests and the general prior."""
        if load.own is None:
            line = self._solve(load, self._prior_belief)
            load.own = _Belief(
                math.log(line.base), (line.base_se / line.base) ** 2, line.slope / line.base,
                (line.slope_se / line.base) ** 2,
            )  # fmt: skip
        return load.own

    def _solve(self, load: _Load, expected: _Belief) -> Line:
        """The posterior, in units of the level of the data, so that noise and priors are relative."""
        prior_base = math.exp(expected.log_base)
        scale = load.sy / (load.count + expected.k * load.sx) if load.count > 0.0 else prior_base
        ratio = prior_base / scale
        base_precision = 1.0 / (expected.base_variance * max(ratio, 1.0) ** 2)
        k_precision = 1.0 / expected.k_variance
        noise = 1.0 / self._noise_variance
        a11 = noise * load.count + base_precision
        a12 = noise * load.sx
        a22 = noise * load.sxx + k_precision
        b1 = noise * load.sy / scale + base_precision * ratio
        b2 = noise * load.sxy / scale + k_precision * expected.k
        determinant = a11 * a22 - a12 * a12
        k = max((a11 * b2 - a12 * b1) / determinant, 0.0)
        base = max((b1 - a12 * k) / a11, _SMALLEST_BASE) * scale
        base_se, slope_se = math.sqrt(a22 / determinant) * scale, math.sqrt(a11 / determinant) * scale
        return Line(base, base_se, k * scale, slope_se, load.count)


def _octave(load: float) -> int:
    """The power of two nearest to `load`, on a logarithmic scale."""
    return min(round(math.log2(max(load, 1.0))), _MAX_OCTAVE)


def _widened(belief: _Belief, octaves: int) -> _Belief:
    """A belief about a load `octaves` away: a random walk."""
    base_variance = belief.base_variance + octaves * _OCTAVE_SPREAD**2
    return _Belief(belief.log_base, base_variance, belief.k, belief.k_variance + octaves * _OCTAVE_SLOPE_SPREAD**2)


def _combined(beliefs: list[_Belief]) -> _Belief:
    """The mean of independent beliefs, by their precision."""
    log_base = base_precision = k = k_precision = 0.0
    for belief in beliefs:
        precision = 1.0 / belief.base_variance
        log_base += precision * belief.log_base
        base_precision += precision
        precision = 1.0 / belief.k_variance
        k += precision * belief.k
        k_precision += precision
    return _Belief(log_base / base_precision, 1.0 / base_precision, k / k_precision, 1.0 / k_precision)
