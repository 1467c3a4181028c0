"""Transitions between levels of the hierarchy."""

from __future__ import annotations

from typing import NamedTuple


class Normal(NamedTuple):
    """A mean and its variance."""

    mean: float
    variance: float


def joined(first: Normal, second: Normal) -> Normal:
    """The mean of two independent beliefs by their precision."""
    total = first.variance + second.variance
    mean = (first.mean * second.variance + second.mean * first.variance) / total
    return Normal(mean, first.variance * second.variance / total)


def clipped(value: float, limit: float) -> float:
    """`value`, at most `limit` from 0, so that the effect of one answer is bounded."""
    return max(-limit, min(limit, value))
