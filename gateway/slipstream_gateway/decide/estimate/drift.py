"""Detection of an outdated running estimate, after a change of prompt, model or server.

Exponential forgetting alone takes a window's length to follow. A short memory of the standardised surprises separates a
change (several on the same side) from an outlier (one); after a change the past is cut to a few observations.
"""

from __future__ import annotations

# For independent standard normal surprises the short memory has standard deviation 0.38: the limit is four of them.
_SHARE = 0.25
_LIMIT = 1.5
_CLIP = 3.0
# The minimum number of observations before a surprise counts.
SETTLED_SAMPLES = 2.0
# The weight of the past after a change.
KEPT_SAMPLES = 0.5


def surprise(memory: float, z: float) -> float:
    """The short memory after a surprise of `z` standard deviations."""
    return memory + _SHARE * (max(-_CLIP, min(_CLIP, z)) - memory)


def has_changed(memory: float) -> bool:
    """Whether too many of the surprises are on one side to be chance."""
    return not -_LIMIT < memory < _LIMIT
