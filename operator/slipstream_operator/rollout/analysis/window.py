"""The latest figures of an arm: a ring of time buckets, each with counts, sums and coarse histograms.

The figures are for display, and for the check whether most requests fail. Statistical decisions do not use them.
"""

from __future__ import annotations

import math

import msgspec
from slipstream_core.manifest.status import ArmFigures

# The window has five buckets. A sixth bucket is still being filled, so the figures cover between 1 and 1.2 windows.
_PARTS = 5
# The bounds of a histogram's bins rise by 9 % per bin (2^(1/8)). A p95 is known within 5 %.
_BINS_PER_DOUBLING = 8.0
# Shorter and longer times count as these limits: the difference has no use, and a checkpoint has to contain every bin.
_SHORTEST_S, _LONGEST_S = 1e-3, 7_200.0
_QUANTILE = 0.95

Histogram = dict[int, int]


def bin_of(seconds: float) -> int:
    """The histogram bin of a time."""
    return math.floor(math.log2(min(max(seconds, _SHORTEST_S), _LONGEST_S)) * _BINS_PER_DOUBLING)


def p95_of(histogram: Histogram) -> float | None:
    """The 95th percentile in seconds; None without values. It is interpolated within a bin on a logarithmic scale."""
    total = sum(histogram.values())
    if not total:
        return None
    wanted, below = _QUANTILE * total, 0
    for index in sorted(histogram):
        count = histogram[index]
        if below + count >= wanted:
            return float(2.0 ** ((index + (wanted - below) / count) / _BINS_PER_DOUBLING))
        below += count
    return None


def merge(into: Histogram, other: Histogram) -> None:
    """Adds `other` to `into`."""
    for index, count in other.items():
        into[index] = into.get(index, 0) + count


class Bucket(msgspec.Struct, kw_only=True, array_like=True):
    """The outcomes of one part of the window. `others` counts answers of the arm outside of the comparison, which count
    only for the error rate. `declined` counts plain answers for which speculation would not have paid."""

    index: int
    answers: int = 0
    others: int = 0
    failures: int = 0
    e2e_s: float = 0.0
    accepts: int = 0
    acceptance: float = 0.0
    costs: int = 0
    cost: float = 0.0
    e2e: Histogram = {}
    ttft: Histogram = {}
    declined: int = 0


_SUMS = tuple(name for name in Bucket.__struct_fields__ if name not in ("index", "e2e", "ttft"))


class Recent(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of an arm within the window. `requests` and `failures` count all requests of the arm. `e2e` is the
    histogram of the p95, and `acceptance` is a sum over `accepts` answers, so that classes can be combined."""

    figures: ArmFigures
    requests: int
    failures: int
    e2e: Histogram
    accepts: int
    acceptance: float
    declined: int


class Window(msgspec.Struct, kw_only=True, array_like=True):
    """The ring of buckets of one arm in one class."""

    seconds: int
    buckets: list[Bucket] = []

    def at(self, time_s: float) -> Bucket | None:
        """The bucket of a time; None for a time before the ring."""
        index = math.floor(time_s * _PARTS / self.seconds)
        for bucket in reversed(self.buckets):
            if bucket.index == index:
                return bucket
        if len(self.buckets) > _PARTS and index < self.buckets[0].index:
            return None
        bucket = Bucket(index=index)
        self.buckets.append(bucket)
        self.buckets.sort(key=_index)
        oldest = self.buckets[-1].index - _PARTS
        self.buckets = [kept for kept in self.buckets if kept.index >= oldest]
        return bucket if index >= oldest else None

    def recent(self, now_s: float) -> Recent:
        """The figures of the window at `now_s`."""
        newest = math.floor(now_s * _PARTS / self.seconds)
        total = Bucket(index=newest)
        for bucket in self.buckets:
            if newest - _PARTS <= bucket.index <= newest:
                _add(total, bucket)
        requests = total.answers + total.others + total.failures
        figures = ArmFigures(
            samples=total.answers,
            accept=_ratio(total.acceptance, total.accepts),
            p95_seconds=_shown(p95_of(total.e2e)),
            ttft_p95_seconds=_shown(p95_of(total.ttft)),
            mean_seconds=_ratio(total.e2e_s, total.answers),
            cost=_ratio(total.cost, total.costs),
            error_rate=_ratio(float(total.failures), requests),
        )
        return Recent(
            figures=figures,
            requests=requests,
            failures=total.failures,
            e2e=total.e2e,
            accepts=total.accepts,
            acceptance=total.acceptance,
            declined=total.declined,
        )


def _index(bucket: Bucket) -> int:
    return bucket.index


def _add(total: Bucket, bucket: Bucket) -> None:
    for name in _SUMS:
        setattr(total, name, getattr(total, name) + getattr(bucket, name))
    merge(total.e2e, bucket.e2e)
    merge(total.ttft, bucket.ttft)


def _ratio(total: float, count: int) -> float | None:
    return _shown(total / count) if count else None


def _shown(value: float | None) -> float | None:
    """`value` rounded to four significant digits, so that an irrelevant change causes no write of the status."""
    return None if value is None else float(f"{value:.4g}")
