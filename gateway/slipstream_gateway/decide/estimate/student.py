"""Student's t distribution, as far as confidence intervals need it."""

from __future__ import annotations

from statistics import NormalDist

_NORMAL = NormalDist().inv_cdf(0.975)
# Below this the expansion is off by more than 0.5 %.
_EXACT = {1: 12.706, 2: 4.303}


def quantile_975(freedom: float) -> float:
    """The 97.5 % quantile at `freedom` degrees of freedom, 1 or more, rounded down below 3; within 0.5 %.

    Cornish-Fisher expansion around the normal quantile (Abramowitz and Stegun 26.7.5).
    """
    if freedom < 3.0:
        return _EXACT[1 if freedom < 2.0 else 2]
    z = _NORMAL
    square = z * z
    first = z * (square + 1.0) / 4.0
    second = z * ((5.0 * square + 16.0) * square + 3.0) / 96.0
    third = z * (((3.0 * square + 19.0) * square + 17.0) * square - 15.0) / 384.0
    fourth = z * ((((79.0 * square + 776.0) * square + 1482.0) * square - 1920.0) * square - 945.0) / 92160.0
    inverse = 1.0 / freedom
    return z + inverse * (first + inverse * (second + inverse * (third + inverse * fourth)))
