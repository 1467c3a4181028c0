"""Speculation under load: drafts that cost capacity are shortened, then dropped.

Speculation that is measured to pay at the present load is not restricted: a batch of such requests takes less of the
servers' time than the same batch decoded plainly, so that without it the queue would grow (see `break_even.relieves`).
Nor are requests whose draft tokens the engine allocates itself, because it ends those that cost capacity. The
restrictions below are for the rest: speculation decided by rules, by measurements from elsewhere, or without a certain
gain.

The pressure on a pair, in [0, 1], is the share of its places that are taken when a request arrives, and 1 while any
request waits for a place. The number of places follows the servers' latency: it rises to more than twice the running
requests while the servers are fast. So a pressure above a half means a sudden burst, or servers at their limit.

The restrictions come in order, each before the next would be needed. Draft tokens are the one optional kind of work:
from `SHRINK_FROM` on the maximum draft length decreases linearly, and from `STOP_AT` on there are no drafts. When all
places are taken requests queue, those of low priority behind all others, and when the queue is full they are refused.

The ramp is that of a scaled trigger of Envoy's overload manager, with its scaling and its saturation threshold.
https://www.envoyproxy.io/docs/envoy/latest/configuration/operations/overload_manager/overload_manager
"""

from __future__ import annotations

# Up to this point there are free places for four in ten more requests, and the forecast covers the effect of the load.
SHRINK_FROM = 0.7
# The last tenth is reserved for requests: a place that drafts might occupy for longer is one that the next request
# waits for.
STOP_AT = 0.9


def pressure_of(taken: int, places: int, *, waiting: bool) -> float:
    """The pressure with `taken` of `places` taken; `waiting`: a request waits for a place. `taken` may exceed `places`
    after the limit has fallen."""
    if waiting or taken >= places:
        return 1.0
    return taken / places


def stops(pressure: float) -> bool:
    """Whether only requested speculation is permitted."""
    return pressure >= STOP_AT


def shortened(longest: int, pressure: float) -> int:
    """The maximum draft length under `pressure`, at least 1; `longest` is the one without pressure."""
    if pressure <= SHRINK_FROM:
        return longest
    left = (STOP_AT - pressure) / (STOP_AT - SHRINK_FROM)
    return max(1, round(longest * left))
