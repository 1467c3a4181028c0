"""Means with their spread, and a confidence sequence on the difference of two.

The sequence may be looked at after every request, for ever: it is the asymptotic, time-uniform one of Waudby-Smith,
Arbour, Sinha, Kennedy and Ramdas ("Time-uniform central limit theory and asymptotic confidence sequences", Annals of
Statistics 2024), one-sided. Chosen over an empirical-Bernstein sequence because answer times have no bound that is not
wider than what is to be shown.
"""

from __future__ import annotations

import math

import msgspec

# Below so many answers an arm's variance is not known well enough for a limit theorem, whatever a policy says.
_FEWEST = 30


class RunningMean(msgspec.Struct, kw_only=True, array_like=True, gc=False):
    """Count, mean and sum of squared deviations (Welford 1962). With `keep` below 1 the past fades by it each time."""

    n: float = 0.0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float, *, keep: float = 1.0) -> None:
        """Take in a value."""
        self.n = self.n * keep + 1.0
        delta = value - self.mean
        self.mean += delta / self.n
        self.squares = self.squares * keep + delta * (value - self.mean)

    @property
    def variance_of_mean(self) -> float:
        """The mean's variance; infinite below two values."""
        return self.squares / (self.n - 1.0) / self.n if self.n >= 2.0 else math.inf


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Mean of the treated minus mean of the control, in their unit. With the wanted confidence it lies below `bound`,
    at all times at once; None of it where there is too little data."""

    difference: float | None = None
    bound: float | None = None


def upper_bound(
    treated: RunningMean, control: RunningMean, *, margin: float, confidence: float, tuned_for: int
) -> Difference:
    """The difference with a bound that is meant to be held against `-margin · mean(control)`.

    The control's mean is only known from its answers, too: the half width is that of treated − (1 − margin)·control,
    whose mean is below 0 exactly where the gain is above the margin. `tuned_for` is the number of answers in either arm
    at which the bound is to be tightest; others are valid, and little wider.
    """
    if treated.n < 1.0 or control.n < 1.0:
        return Difference()
    difference = treated.mean - control.mean
    if min(treated.n, control.n) < _FEWEST:
        return Difference(difference=difference)
    variance = treated.variance_of_mean + (1.0 - margin) ** 2 * control.variance_of_mean
    answers = treated.n * control.n / (treated.n + control.n)
    half = math.sqrt(variance) * _boundary(answers, confidence=confidence, tuned_for=tuned_for / 2.0)
    return Difference(difference=difference, bound=difference + half)


def _boundary(t: float, *, confidence: float, tuned_for: float) -> float:
    """How many standard errors the bound is away after `t` answers: the one-sided normal mixture boundary."""
    alpha = 1.0 - confidence
    rho2 = _rho2(alpha, tuned_for)
    spread = t * rho2 + 1.0
    return math.sqrt(2.0 * spread / (t * rho2) * math.log1p(math.sqrt(spread) / (2.0 * alpha)))


def _rho2(alpha: float, t: float) -> float:
    """The mixture's variance for which the bound is about tightest after `t` answers (same paper, appendix B.2)."""
    log = -2.0 * math.log(2.0 * alpha) if alpha < 0.5 else 1.0
    log = max(log, 1e-3)
    return (log + math.log1p(log)) / t
