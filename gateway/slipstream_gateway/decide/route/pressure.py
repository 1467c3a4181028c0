"""What too much work does to speculation that costs capacity: drafts get shorter, then there are none.

Speculation that is measured to pay at the load of the moment is left alone: a batch of such requests takes less of the
servers' time than the same one decoded plainly, so that without it the queue would grow (see `saving.relieves`). What
follows is for the rest: decided by rules, by what others measured elsewhere, or not surely a gain.

The pressure on a pair, in [0, 1], is the share of its places that is taken when a request comes, and 1 while anybody
waits for one. The number of places follows the servers' latency: it climbs past twice what runs while they are quick,
so that a pressure above a half means a sudden crowd, or servers at their limit.

So there is an order, and each step comes before the next one hurts. Draft tokens are the one piece of work that nobody
asked for: from `SHRINK_FROM` on the longest draft shrinks evenly, and from `STOP_AT` on there is none. When every place
is taken requests wait, those of low priority behind all others, and where the queue ends they are refused.

The ramp is that of a scaled trigger of Envoy's overload manager, with its scaling and its saturation threshold.
https://www.envoyproxy.io/docs/envoy/latest/configuration/operations/overload_manager/overload_manager
"""

from __future__ import annotations

# Up to here four in ten more than run still find a place, and what the load does to the saving is in the forecast.
SHRINK_FROM = 0.7
# The last tenth is left to requests: a place that drafts may hold for longer is one that the next request waits for.
STOP_AT = 0.9


def pressure_of(taken: int, places: int, *, waiting: bool) -> float:
    """The pressure where `taken` of `places` are; `waiting`: somebody waits for one. More may be taken than there are,
    because the limit fell."""
    if waiting or taken >= places:
        return 1.0
    return taken / places


def stops(pressure: float) -> bool:
    """Whether nothing speculates that was not asked to."""
    return pressure >= STOP_AT


def shortened(longest: int, pressure: float) -> int:
    """The longest draft under `pressure`, 1 at least; `longest` is the one without any."""
    if pressure <= SHRINK_FROM:
        return longest
    left = (STOP_AT - pressure) / (STOP_AT - SHRINK_FROM)
    return max(1, round(longest * left))
