"""Transitions between levels of the hierarchy: a normal prior, and the data of the members below."""

from __future__ import annotations

from typing import NamedTuple

from slipstream_gateway.decide.estimate.pooled import PooledMean


class Normal(NamedTuple):
    """A mean and its variance."""

    mean: float
    variance: float


def shrink(pooled: PooledMean, prior: Normal, *, noise: float, between: float) -> Normal:
    """The posterior of `prior` after a pooled mean, with variances of `noise` within its members and `between` them."""
    if pooled.weight <= 0.0:
        return prior
    data = 1.0 / (noise / pooled.weight + between / pooled.members)
    variance = 1.0 / (data + 1.0 / prior.variance)
    return Normal((data * pooled.mean + prior.mean / prior.variance) * variance, variance)


def joined(first: Normal, second: Normal) -> Normal:
    """The mean of two independent beliefs by their precision."""
    total = first.variance + second.variance
    mean = (first.mean * second.variance + second.mean * first.variance) / total
    return Normal(mean, first.variance * second.variance / total)


def clipped(value: float, limit: float) -> float:
    """`value`, at most `limit` from 0, so that the effect of one answer is bounded."""
    return max(-limit, min(limit, value))
