"""Noticing that a running estimate is out of date: a prompt, a model or a server was changed.

Exponential forgetting alone takes a window's length to follow. A short memory of the standardised surprises tells a
change (several on the same side) from an outlier (one), and then the past is cut to a few observations.
"""

from __future__ import annotations

# Of independent standard normal surprises the short memory has standard deviation 0.38: the limit is four of them.
_SHARE = 0.25
_LIMIT = 1.5
_CLIP = 3.0
# From so many observations on there is something to be surprised about.
SETTLED_SAMPLES = 2.0
# What the past counts for after a change.
KEPT_SAMPLES = 0.5


def surprise(memory: float, z: float) -> float:
    """The short memory after a surprise of `z` standard deviations."""
    return memory + _SHARE * (max(-_CLIP, min(_CLIP, z)) - memory)


def has_changed(memory: float) -> bool:
    """Whether the surprises so far are too many on one side to be chance."""
    return not -_LIMIT < memory < _LIMIT
