"""What too much work does to speculation that costs capacity: drafts get shorter, then there are none.

Speculation that is measured to pay at the load of the moment is left alone: a batch of such requests takes less of the
servers' time than the same one decoded plainly, so that without it the queue would grow (see `saving.relieves`). What
follows is for the rest: decided by rules, by what others measured elsewhere, or not surely a gain.

The pressure on a pair, in [0, 1], is how long a newcomer waits for a place, as a share of the longest that anybody
waits. It is 0 while nobody waits: how busy servers change what speculation saves is in the forecast, which knows the
load.

Up to `SHRINK_FROM` nothing changes. A short queue says only that more came at once than may run at once, and where
drafts pay under load, as they may, they are what gets it served soonest. From there on the longest draft shrinks
evenly, to nothing at `STOP_AT`: the wait is near the point at which requests are refused, forecasts have missed what
happens, and draft tokens are the one piece of work that nobody asked for.
"""

from __future__ import annotations

SHRINK_FROM = 0.25
STOP_AT = 0.75


def stops(pressure: float) -> bool:
    """Whether nothing speculates that was not asked to."""
    return pressure >= STOP_AT


def shortened(longest: int, pressure: float) -> int:
    """The longest draft under `pressure`, 1 at least; `longest` is the one without any."""
    if pressure <= SHRINK_FROM:
        return longest
    left = (STOP_AT - pressure) / (STOP_AT - SHRINK_FROM)
    return max(1, round(longest * left))
