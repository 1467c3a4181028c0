"""A class's times relative to the predictions of its servers' load curves: a log ratio per arm.

Both arms share the effect of the prompt (a long context slows either), so an arm without data inherits the other's
ratio; their difference is shrunk towards 0.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

_KEEP = 1.0 - 1.0 / 30.0
_CLIP = 1.5
_FIELDS = 4


class RatioPrior(NamedTuple):
    """Standard deviations of log ratios, whose mean is 0: of one observation (`noise`), between classes (`shared`), and
    of an arm from its class's mean (`arm`)."""

    noise: float
    shared: float
    arm: float


class Ratio(NamedTuple):
    """A mean log ratio, its variance, and the observations behind it."""

    mean: float
    variance: float
    samples: float


def unseen(prior: RatioPrior) -> tuple[Ratio, Ratio]:
    """The ratios of a class without observations, plain and speculative."""
    ratio = Ratio(0.0, prior.shared**2 + prior.arm**2, 0.0)
    return ratio, ratio


class ArmRatios:
    """Log ratios of one class, plain and speculative."""

    __slots__ = ("_state",)

    def __init__(self) -> None:
        # Per arm, plain first: samples and mean as observed, then mean and variance of the fit. Packed, because there
        # are many.
        self._state = array("d", [0.0] * (2 * _FIELDS))

    @property
    def plain(self) -> Ratio:
        return self._ratio(0)

    @property
    def speculative(self) -> Ratio:
        return self._ratio(_FIELDS)

    def _ratio(self, at: int) -> Ratio:
        state = self._state
        return Ratio(state[at + 2], state[at + 3], state[at])

    def update(self, speculative: bool, log_ratio: float, weight: float, prior: RatioPrior) -> None:
        """Records one request's log ratio, observed over predicted, and refits; `weight` is in (0, 1]."""
        state, at = self._state, _FIELDS if speculative else 0
        value = max(-_CLIP, min(_CLIP, log_ratio))
        samples = state[at] * _KEEP + weight
        state[at] = samples
        state[at + 1] += (value - state[at + 1]) * weight / samples
        self._fit(prior)

    def _fit(self, prior: RatioPrior) -> None:
        """Each arm is a shared mean plus a deviation; the shared mean is fitted first."""
        state = self._state
        noise, arm_variance = prior.noise**2, prior.arm**2
        precision, shared = 1.0 / prior.shared**2, 0.0
        for at in (0, _FIELDS):
            weight = state[at] / (noise + state[at] * arm_variance)
            precision += weight
            shared += weight * state[at + 1]
        shared /= precision
        for at in (0, _FIELDS):
            own = state[at] / noise
            variance = 1.0 / (own + 1.0 / arm_variance)
            part = variance / arm_variance
            state[at + 2] = own * variance * state[at + 1] + part * shared
            state[at + 3] = variance + part * part / precision
