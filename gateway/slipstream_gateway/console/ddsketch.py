"""Quantiles of times that can be merged: counts by logarithmic bins (DDSketch: Masson, Rim and Lee, VLDB 2019).

A quantile is within `ACCURACY` of the true one for any distribution; a bin is an integer, a sketch a mapping.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

ACCURACY = 0.02
_GAMMA = (1.0 + ACCURACY) / (1.0 - ACCURACY)
_LOG_GAMMA = math.log(_GAMMA)
_LEAST_S = 1e-6

Bins = dict[int, int]


def add(bins: Bins, seconds: float) -> None:
    """Counts one value."""
    number = math.ceil(math.log(max(seconds, _LEAST_S)) / _LOG_GAMMA)
    bins[number] = bins.get(number, 0) + 1


def join(bins: Bins, other: Mapping[int, int]) -> None:
    """Merges the values of `other`."""
    for number, count in other.items():
        bins[number] = bins.get(number, 0) + count


def quantiles(bins: Mapping[int, int], shares: Sequence[float]) -> list[float]:
    """The quantiles for the ascending `shares`. The sketch must not be empty."""
    ordered = sorted(bins.items())
    total = sum(count for _, count in ordered)
    found: list[float] = []
    seen, at = 0, -1
    for share in shares:
        rank = share * (total - 1)
        while seen <= rank:
            at += 1
            seen += ordered[at][1]
        found.append(2.0 * _GAMMA ** ordered[at][0] / (_GAMMA + 1.0))
    return found
