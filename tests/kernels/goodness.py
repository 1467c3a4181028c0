"""Chi-squared goodness of fit with a budget for false alarms, and the size of the errors that it finds."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import chi2, ncx2

FALSE_ALARMS = 1e-3
"""The chance that sound code fails any of the goodness-of-fit tests of emitted tokens in this folder, all together."""

POWER = 0.99
"""How surely `smallest_error_found` is found."""

_SMALL = 5.0
"""Cells in which fewer are expected are counted as one: the approximation by chi-squared needs about so many."""


def p_value(tokens: NDArray[np.int64], joint: NDArray[np.float64]) -> float:
    """How likely counts at least as far from `joint` are, if it is right. 0 if something came that cannot come.

    Args:
        tokens: [N, 2], the first two tokens of N independent generations.
        joint: [V, V], their probabilities.
    """
    observed = np.zeros_like(joint)
    np.add.at(observed, tuple(tokens.T), 1.0)
    if observed[joint == 0].any():
        return 0.0
    return float(chi2.sf(*_statistic(observed, joint)))


def smallest_error_found(samples: int, joint: NDArray[np.float64], level: float) -> float:
    """The distance in total variation from which on every error fails the test at `level`, with chance `POWER`.

    The statistic of N samples from another distribution p' is about a non-central chi-squared one with λ = N Σ (p' -
    p)²/p, and by Cauchy and Schwarz Σ (p' - p)²/p ≥ (Σ |p' - p|)² = (2 TV)², whichever way the error points. (Where
    cells were counted as one: the distance between what is left.)
    """
    _, freedom = _statistic(samples * joint, joint)
    limit = chi2.isf(level, freedom)
    noncentrality = brentq(lambda value: ncx2.sf(limit, freedom, value) - POWER, 1e-3, 1e5)
    return math.sqrt(noncentrality / samples) / 2


def total_variation(tokens: NDArray[np.int64], joint: NDArray[np.float64]) -> float:
    """The distance between the shares of `tokens` [N, 2] and `joint` [V, V]; sampling noise is part of it."""
    observed = np.zeros_like(joint)
    np.add.at(observed, tuple(tokens.T), 1.0 / len(tokens))
    return float(np.abs(observed - joint).sum() / 2)


def _statistic(observed: NDArray[np.float64], joint: NDArray[np.float64]) -> tuple[float, int]:
    """Pearson's statistic and its degrees of freedom."""
    expected = joint.ravel() * observed.sum()
    counts, rare = observed.ravel(), expected < _SMALL
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    used = expected > 0
    return float(((counts - expected)[used] ** 2 / expected[used]).sum()), max(int(used.sum()) - 1, 1)
