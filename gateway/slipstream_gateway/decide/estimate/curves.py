"""The times of a server's steps by load and draft length, learned from its traffic.

y = t·(1 + k·x) at each load, as a Bayesian regression with forgetting. x is the mean draft length in the batch, and t·k
the cost of a draft token per request. Loads are the powers of two; between two of them both learn and both predict,
weighted by distance. A load with little data uses its neighbours, then what other API keys measured, and all use a
general prior.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

from slipstream_gateway.decide.estimate.drift import KEPT_SAMPLES, SETTLED_SAMPLES, has_changed, surprise
from slipstream_gateway.decide.estimate.median_by_key import median_near

WINDOW = 64.0
_MAX_OCTAVE = 10
# Standard deviations between neighbouring powers of two: of t as a share, and of k.
_OCTAVE_SPREAD = 0.35
_OCTAVE_SLOPE_SPREAD = 0.05
# The noise prior counts as this many observations; surprises are clipped at this many standard deviations.
_NOISE_SAMPLES = 8.0
_CLIP = 4.0
# Standard deviations of the base relative to a relative's prediction, and of the ratio of two relatives between loads.
_RELATIVE_SPREAD = 0.3
_OFFSET_SPREAD = 0.15
# Standard deviations between API keys: of the base as a share, and of k.
_KEYS_SPREAD, _KEYS_SLOPE_SPREAD = 0.15, 0.05
_SMALLEST_BASE = 0.05
# Once a curve or a relative has any data, the general prior's base is ignored.
_VAGUE = 100.0
# The prior of a load is recomputed when the updates that it is based on, its key's or the others', have grown by this
# factor: a load with requests of its own hardly depends on it.
_STALENESS = 1.125


class Line(NamedTuple):
    """y = base + slope·x with standard errors, in seconds; `samples` at this load."""

    base: float
    base_se: float
    slope: float
    slope_se: float
    samples: float

    def at(self, x: float) -> float:
        return self.base + self.slope * x

    def scaled(self, ratio: float) -> Line:
        """All times multiplied by `ratio`."""
        return Line(ratio * self.base, ratio * self.base_se, ratio * self.slope, ratio * self.slope_se, self.samples)


class CurvePrior(NamedTuple):
    """t and its relative standard deviation, k and its standard deviation, and the relative noise of one request."""

    base: float
    base_spread: float
    k: float
    k_spread: float
    noise: float


class Vote(NamedTuple):
    """log t and k of another API key's curve at one load, from its own requests."""

    log_base: float
    k: float


class OtherKeys(Protocol):
    """What other API keys measured of the same times. `version` counts their requests."""

    @property
    def version(self) -> int: ...

    def votes(self, octave: int) -> list[Vote]:
        """One vote for each key at the load `2 ** octave`; empty if the keys are too few to count."""
        ...


class _Belief(NamedTuple):
    """log t and k with their variances."""

    log_base: float
    base_variance: float
    k: float
    k_variance: float


class _Load:
    """Weighted sums of the observations at one load, and the last results: `line`, the `expected` prior as of
    `expected_at` updates of the curve and `others_at` of other keys, `own`, the estimate that other loads use, and the
    line `alone` as of `alone_at` updates of the curve."""

    __slots__ = (
        "alone", "alone_at", "count", "expected", "expected_at", "line", "memory", "noise", "others_at", "own", "sx",
        "sxx", "sxy", "sy",
    )  # fmt: skip

    def __init__(self) -> None:
        self.count = self.sx = self.sy = self.sxx = self.sxy = 0.0
        self.noise = self.memory = 0.0
        self.line: Line | None = None
        self.own: _Belief | None = None
        self.expected: _Belief | None = None
        self.alone: Line | None = None
        self.expected_at = self.others_at = self.alone_at = 0

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
        self.noise *= share


class Curve:
    """Times of one API key's requests on one pool of servers, by load. `version` counts the requests, `weight` is the
    sum of their weights. With `others`, the median of the other keys is a prior."""

    def __init__(self, prior: CurvePrior, others: OtherKeys | None = None) -> None:
        self._others = others
        self._noise_variance = prior.noise**2
        self._prior_belief = _Belief(math.log(prior.base), prior.base_spread**2, prior.k, prior.k_spread**2)
        self._vague_belief = self._prior_belief._replace(base_variance=_VAGUE)
        self._relatives: list[tuple[Curve, float]] = []
        self._loads = [_Load() for _ in range(_MAX_OCTAVE + 1)]
        self.version = 0
        self.weight = 0.0

    @property
    def has_data(self) -> bool:
        """Whether this curve or a relative has a request."""
        return self._changes() > 0

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
        lower, share = _position(load)
        first = self.line_at(lower)
        if share == 0.0:
            return first
        second, rest = self.line_at(lower + 1), 1.0 - share
        return Line(
            rest * first.base + share * second.base,
            rest * first.base_se + share * second.base_se,
            rest * first.slope + share * second.slope,
            rest * first.slope_se + share * second.slope_se,
            rest * first.samples + share * second.samples,
        )

    def alone(self, octave: int) -> Line:
        """The prediction at `2 ** octave` requests in flight from this curve's requests alone."""
        load = self._loads[octave]
        if load.alone is None or load.alone_at != self.version:
            load.alone, load.alone_at = self._solve(load, _combined(self._nearby(octave))), self.version
        return load.alone

    def update(self, load: float, x: float, y: float, expected: float, weight: float = 1.0) -> None:
        """Records a request with `y` seconds at `x`, where the line predicted `expected`; `weight` in (0, 1] is below 1
        for a noisier one."""
        self.weight += weight
        lower, share = _position(load)
        if share < 1.0:
            self._learn(self._loads[lower], x, y, weight * (1.0 - share), expected)
        if share > 0.0:
            self._learn(self._loads[lower + 1], x, y, weight * share, expected)
        self.version += 1

    def _learn(self, load: _Load, x: float, y: float, weight: float, expected: float) -> None:
        if load.count >= SETTLED_SAMPLES:
            relative, deviation = (y - expected) / expected, math.sqrt(self._noise_at(load) / weight)
            load.memory = surprise(load.memory, relative / deviation)
            if has_changed(load.memory):
                load.scale(min(1.0, KEPT_SAMPLES / load.count))
                load.memory = 0.0
            limit = _CLIP * deviation
            relative = max(-limit, min(limit, relative))
            load.noise += weight * relative * relative
            y = expected * (1.0 + relative)
        load.add(x, y, weight)

    def _noise_at(self, load: _Load) -> float:
        return (self._noise_variance * _NOISE_SAMPLES + load.noise) / (_NOISE_SAMPLES + load.count)

    def line_at(self, octave: int) -> Line:
        """The prediction at `2 ** octave` requests in flight."""
        load = self._loads[octave]
        expected, others = load.expected, self._others.version if self._others is not None else 0
        if expected is None or self._changes() > load.expected_at or others > load.others_at:
            expected = load.expected = self._expected(octave)
            load.expected_at, load.others_at = int(self._changes() * _STALENESS), int(others * _STALENESS)
            load.line = None
        if load.line is None:
            load.line = self._solve(load, expected)
        return load.line

    def _changes(self) -> int:
        return self.version + sum(relative.version for relative, _ in self._relatives)

    def _expected(self, octave: int) -> _Belief:
        """The prediction for a load from the nearest loads on either side, a relative, other keys and the general
        prior."""
        beliefs = self._nearby(octave)
        for relative, log_ratio in self._relatives:
            if relative.version > 0:
                line = relative.alone(octave)
                offset, offset_variance = self._offset(relative, log_ratio)
                variance = (line.base_se / line.base) ** 2 + offset_variance
                beliefs.append(_Belief(math.log(line.base) + offset, variance, 0.0, math.inf))
        own = _combined(beliefs)
        votes = self._others.votes(octave) if self._others is not None else []
        if not votes:
            return own
        log_base = median_near([vote.log_base for vote in votes], own.log_base)
        k = median_near([vote.k for vote in votes], own.k)
        return _combined([own, _Belief(log_base, _KEYS_SPREAD**2, k, _KEYS_SLOPE_SPREAD**2)])

    def _offset(self, relative: Curve, log_ratio: float) -> tuple[float, float]:
        """The log ratio of the base to a relative's, and its variance: `log_ratio`, until both have requests of their
        own at a common load."""
        precision = 1.0 / _RELATIVE_SPREAD**2
        total = precision * log_ratio
        for own, other in zip(self._loads, relative._loads, strict=True):
            if own.count > 0.0 and other.count > 0.0:
                mine, theirs = self._own(own), relative._own(other)
                weight = 1.0 / (mine.base_variance + theirs.base_variance + _OFFSET_SPREAD**2)
                total += weight * (mine.log_base - theirs.log_base)
                precision += weight
        return total / precision, 1.0 / precision + _OFFSET_SPREAD**2

    def _nearby(self, octave: int) -> list[_Belief]:
        """The general prior, and the nearest loads on either side with data."""
        beliefs = [self._vague_belief if self.has_data else self._prior_belief]
        for step in (-1, 1):
            at = octave + step
            while 0 <= at <= _MAX_OCTAVE and self._loads[at].count == 0.0:
                at += step
            if 0 <= at <= _MAX_OCTAVE:
                beliefs.append(_widened(self._own(self._loads[at]), abs(at - octave)))
        return beliefs

    def _own(self, load: _Load) -> _Belief:
        """The estimate from a load's own requests; of k only the gain over the prior, which must not count twice."""
        if load.own is None:
            load.own = _without_prior(self._solve(load, self._prior_belief), self._prior_belief)
        return load.own

    def _solve(self, load: _Load, expected: _Belief) -> Line:
        """The posterior, in units of the level of the data, so that noise and priors are relative."""
        prior_base = math.exp(expected.log_base)
        scale = load.sy / (load.count + expected.k * load.sx) if load.count > 0.0 else prior_base
        ratio = prior_base / scale
        base_precision = 1.0 / (expected.base_variance * max(ratio, 1.0) ** 2)
        k_precision = 1.0 / expected.k_variance
        noise = 1.0 / self._noise_at(load)
        a11 = noise * load.count + base_precision
        a12 = noise * load.sx
        a22 = noise * load.sxx + k_precision
        b1 = noise * load.sy / scale + base_precision * ratio
        b2 = noise * load.sxy / scale + k_precision * expected.k
        determinant = a11 * a22 - a12 * a12
        k = max((a11 * b2 - a12 * b1) / determinant, 0.0)
        base = max((b1 - a12 * k) / a11, _SMALLEST_BASE)
        return Line(
            base * scale,
            math.sqrt(a22 / determinant) * scale,
            k * scale,
            math.sqrt(a11 / determinant) * scale,
            load.count,
        )


def _position(load: float) -> tuple[int, float]:
    """The power of two at or below `load`, and the relative position towards the next, on a logarithmic scale."""
    if load <= 1.0:
        return 0, 0.0
    position = math.log2(load)
    if position >= _MAX_OCTAVE:
        return _MAX_OCTAVE, 0.0
    lower = int(position)
    return lower, position - lower


def _without_prior(line: Line, prior: _Belief) -> _Belief:
    base_variance, log_base = (line.base_se / line.base) ** 2, math.log(line.base)
    precision = (line.base / line.slope_se) ** 2
    own = precision - 1.0 / prior.k_variance
    if own <= 0.01 * precision:
        return _Belief(log_base, base_variance, 0.0, math.inf)
    k = max((precision * line.slope / line.base - prior.k / prior.k_variance) / own, 0.0)
    return _Belief(log_base, base_variance, k, 1.0 / own)


def _widened(belief: _Belief, octaves: int) -> _Belief:
    """A belief about a load `octaves` away: a random walk."""
    return _Belief(
        belief.log_base,
        belief.base_variance + octaves * _OCTAVE_SPREAD**2,
        belief.k,
        belief.k_variance + octaves * _OCTAVE_SLOPE_SPREAD**2,
    )


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
