"""Quantiles, paired bootstrap intervals and rank correlation: pure functions over arrays.

Intervals are bootstrap percentiles (Efron & Tibshirani 1993, ch. 13) over clusters: all rounds of one request are
drawn together, because they are no independent evidence. Quantiles are values that occurred (inverted distribution).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream_tools.bench.summary import Distribution, Interval

RESAMPLES = 2_000
CONFIDENCE = 0.95
_MAX_CELLS = 4_000_000
_ROUNDING = 1e-9

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Floats]
"""Row weights, shape (resamples, rows), to one value per resample."""


def distribution(values: Sequence[float]) -> Distribution | None:
    """Mean and quantiles of `values`; None for none."""
    if not values:
        return None
    data = np.asarray(values, dtype=np.float64)
    p50, p95, p99 = np.quantile(data, (0.5, 0.95, 0.99), method="inverted_cdf")
    return Distribution(n=len(values), mean=float(data.mean()), p50=float(p50), p95=float(p95), p99=float(p99))


def bootstrap(
    statistics: Sequence[Statistic], clusters: Sequence[int], *, seed: int, resamples: int = RESAMPLES
) -> list[Interval | None]:
    """Each statistic over all rows, with its interval over `resamples` draws of whole clusters.

    `clusters` names each row's. All statistics see the same draws. None where a statistic has no finite value, and for
    fewer than two clusters: draws of the same one do not vary, which would look like certainty.
    """
    if len(set(clusters)) < 2:
        return [None] * len(statistics)
    _, rows = np.unique(np.asarray(clusters), return_inverse=True)
    drawn = [_values(statistics, weights) for weights in _resampled(rows, seed, resamples)]
    table = np.concatenate(drawn, axis=1)
    whole = _values(statistics, np.ones((1, len(rows))))[:, 0]
    tail = (1 - CONFIDENCE) / 2
    return [_interval(float(estimate), values, tail) for estimate, values in zip(whole, table, strict=True)]


def seed_of(seed: int, *name: object) -> int:
    """The seed of the intervals of a cell and mode: draft, concurrency, class, length and mode."""
    return zlib.crc32(repr((seed, *name)).encode())


def mean_difference(baseline: Floats, other: Floats) -> Statistic:
    """Mean of other − baseline."""
    return lambda weights: weights @ (other - baseline) / weights.sum(axis=1)


def ratio_of_means(numerator: Floats, denominator: Floats) -> Statistic:
    return lambda weights: _divide(weights @ numerator, weights @ denominator)


def relative_increase(baseline: Floats, other: Floats) -> Statistic:
    """mean(other) / mean(baseline) − 1."""
    return lambda weights: _divide(weights @ other, weights @ baseline) - 1.0


def quantile_reduction(baseline: Floats, other: Floats, q: float) -> Statistic:
    """1 − quantile(other) / quantile(baseline)."""
    of_baseline, of_other = weighted_quantile(baseline, q), weighted_quantile(other, q)
    return lambda weights: 1.0 - _divide(of_other(weights), of_baseline(weights))


def weighted_quantile(values: Floats, q: float) -> Statistic:
    """The smallest value at which the cumulated weight reaches share `q`."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]

    def statistic(weights: Floats) -> Floats:
        cumulated = np.cumsum(weights[:, order], axis=1)
        wanted = cumulated[:, -1:] * q - _ROUNDING
        quantiles: Floats = ordered[np.argmax(cumulated >= wanted, axis=1)]
        return quantiles

    return statistic


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's ρ with mean ranks for ties; None below three pairs or where either side does not vary."""
    if len(first) < 3:
        return None
    ranks = _ranks(np.asarray(first, dtype=np.float64)), _ranks(np.asarray(second, dtype=np.float64))
    if any(rank.std() == 0 for rank in ranks):
        return None
    return float(np.corrcoef(*ranks)[0, 1])


def _resampled(rows: NDArray[np.intp], seed: int, resamples: int) -> Iterator[Floats]:
    """Row weights in blocks of bounded size."""
    random = np.random.default_rng(seed)
    clusters = int(rows.max()) + 1
    block = max(1, _MAX_CELLS // len(rows))
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        drawn = random.integers(0, clusters, size=(size, clusters), dtype=np.int32)
        drawn += np.arange(0, size * clusters, clusters, dtype=np.int32)[:, None]  # a range of its own per resample
        counts = np.bincount(drawn.ravel(), minlength=size * clusters).reshape(size, clusters)
        yield counts[:, rows].astype(np.float64)


def _values(statistics: Sequence[Statistic], weights: Floats) -> Floats:
    return np.stack([statistic(weights) for statistic in statistics])


def _interval(estimate: float, values: Floats, tail: float) -> Interval | None:
    finite = values[np.isfinite(values)]
    if not np.isfinite(estimate) or not len(finite):
        return None
    low, high = np.quantile(finite, (tail, 1 - tail))
    return Interval(estimate=estimate, low=float(low), high=float(high))


def _divide(numerator: Floats, denominator: Floats) -> Floats:
    """The quotient, NaN where there is nothing to divide by."""
    quotient: Floats = np.divide(numerator, denominator, out=np.full_like(numerator, np.nan), where=denominator > 0)
    return quotient


def _ranks(values: Floats) -> Floats:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Floats = (last - (counts - 1) / 2)[inverse]
    return ranks
