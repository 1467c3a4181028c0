"""Means with forgetting, and the combination of two beliefs."""

from __future__ import annotations

from typing import NamedTuple

# The window of a class, in observations.
_KEEP = 1.0 - 1.0 / 30.0


class Normal(NamedTuple):
    """A mean and its variance."""

    mean: float
    variance: float


def joined(first: Normal, second: Normal) -> Normal:
    """The mean of two independent beliefs by their precision."""
    total = first.variance + second.variance
    mean = (first.mean * second.variance + second.mean * first.variance) / total
    return Normal(mean, first.variance * second.variance / total)


class RunningMean:
    """A mean with forgetting, and the weight of the observations behind it. It starts at `mean`, which counts as
    `weight` observations."""

    __slots__ = ("_keep", "mean", "weight")

    def __init__(self, mean: float = 0.0, weight: float = 0.0, *, keep: float = _KEEP) -> None:
        self.mean, self.weight, self._keep = mean, weight, keep

    def add(self, value: float, weight: float = 1.0) -> None:
        """Records an observation; `weight` is in (0, 1]."""
        self.weight = self.weight * self._keep + weight
        self.mean += (value - self.mean) * weight / self.weight
