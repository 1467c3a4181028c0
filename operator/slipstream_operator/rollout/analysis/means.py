"""Means of likelihood ratios, and the boundary of a confidence sequence.

The sequence is valid after every answer, at all times. It is the asymptotic, time-uniform sequence of Waudby-Smith,
Arbour, Sinha, Kennedy and Ramdas ("Time-uniform central limit theory and asymptotic confidence sequences", Annals of
Statistics 2024), one-sided. It was chosen over an empirical-Bernstein sequence, which needs a bound of the values: any
bound of answer times is wider than the effect to be shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def log_mean(logs: Sequence[float]) -> float:
    """The log of the mean of likelihood ratios, from their logs."""
    highest = max(logs)
    return highest + math.log(sum(math.exp(log - highest) for log in logs) / len(logs))


def boundary(t: float, *, confidence: float, tuned_for: float) -> float:
    """The distance of the bound from the mean after `t` answers, in standard errors: the one-sided normal mixture
    boundary."""
    alpha = 1.0 - confidence
    rho2 = _rho2(alpha, tuned_for)
    spread = t * rho2 + 1.0
    return math.sqrt(2.0 * spread / (t * rho2) * math.log1p(math.sqrt(spread) / (2.0 * alpha)))


def _rho2(alpha: float, t: float) -> float:
    """The mixture's variance with which the bound is about tightest after `t` answers (same paper, appendix B.2)."""
    log = -2.0 * math.log(2.0 * alpha) if alpha < 0.5 else 1.0
    log = max(log, 1e-3)
    return (log + math.log1p(log)) / t
