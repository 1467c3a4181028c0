"""Requests for a pair that scales to zero wait for its first server. The pair's report makes the operator start one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from slipstream_core.errors import SlipstreamError, UpstreamUnavailable, shorten
from slipstream_core.manifest.autoscaling import Autoscaling

from slipstream_gateway.fleet.fleet import Fleet
from slipstream_gateway.fleet.snapshot import ServedRoute, Snapshot
from slipstream_gateway.request.deadlines import CallTimer

_RETRY_S = 10.0


class ColdStarts:
    """Holds at most `max_held` requests, each for at most its pair's `coldStartSeconds`. The pairs that scale to zero
    have equal shares of the places, so that requests for one cannot take those of the others."""

    def __init__(self, fleet: Fleet, *, max_held: int) -> None:
        self._fleet = fleet
        self._max_held = max_held
        self._held: Counter[str] = Counter()
        self._swap = asyncio.Event()
        fleet.on_swap(self._swapped)

    async def served(self, find: Callable[[], ServedRoute], timer: CallTimer) -> ServedRoute:
        """The route that `find` returns, once it has a server. Without a wait if its pair does not scale to zero.

        Raises `UpstreamUnavailable` if no server is ready in time or too many requests wait, `DeadlineExceeded`, or the
        errors of `find`.
        """
        route = find()
        autoscaling = _missing_server(route)
        if autoscaling is None:
            return route
        model = shorten(route.route.pair.spec.model)
        key = route.route.key
        places = self._places()
        if self._held[key] >= places:
            message = f"No server for the model '{model}' is up yet, and at most {places} requests may wait for it."
            raise UpstreamUnavailable(message, retry_after_s=_RETRY_S)

        def late(limit_s: float, what: str) -> SlipstreamError:
            message = f"No server for the model '{model}' was ready within {limit_s:g} s."
            return UpstreamUnavailable(message, retry_after_s=_RETRY_S)

        self._held[key] += 1
        try:
            with self._fleet.use.held(key):
                with timer.waiting(autoscaling.cold_start_seconds, "a server to start", late):
                    while _missing_server(route := find()) is not None:
                        await self._swap.wait()
                return route
        finally:
            self._held[key] -= 1
            if not self._held[key]:
                del self._held[key]

    def _places(self) -> int:
        """The share of one pair."""
        pairs = {served.route.key for served in self._fleet.current.by_name.values() if served.scales_to_zero}
        return max(self._max_held // max(len(pairs), 1), min(self._max_held, 1))

    def _swapped(self, _: Snapshot | None, __: Snapshot) -> None:
        self._swap.set()  # wakes all that wait now
        self._swap.clear()


def _missing_server(served: ServedRoute) -> Autoscaling | None:
    """The autoscaling of a pair that scales to zero and has no server now; else None."""
    serving = served.route.pair.spec.serving
    return None if served.plain.replicas or not served.scales_to_zero or serving is None else serving.autoscaling
