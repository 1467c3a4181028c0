"""The way in to one pair: its limit, what runs, who waits, and how long that takes."""

from __future__ import annotations

import asyncio
import math

import msgspec

from slipstream_gateway.admission.fair_queue import FairQueue
from slipstream_gateway.admission.limit import AdaptiveLimit

_RATE_S = 5.0


class GateState(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to say of a pair's way in. `latency_ratio` is how many times as long as usual first tokens take;
    `expected_wait_s` what a newcomer has to expect. `waited` counts those that had to wait, `waited_s` for how
    long together."""

    pair: str
    limit: int
    in_flight: int
    queued: int
    pressure: float
    latency_ratio: float
    expected_wait_s: float
    waited: int
    waited_s: float
    refused: dict[str, int]


class Gate:
    """One pair's. `refused` counts by cause, `waited` those that had to wait and `waited_s` for how long."""

    __slots__ = ("_began_s", "_ends", "_ends_s", "in_flight", "limit", "pair", "queue", "refused", "waited", "waited_s")

    def __init__(self, pair: str, limit: AdaptiveLimit, now_s: float) -> None:
        self.pair = pair
        self.limit = limit
        self.in_flight = 0
        self.queue: FairQueue[asyncio.Future[None]] = FairQueue()
        self.refused: dict[str, int] = {}
        self.waited = 0
        self.waited_s = 0.0
        self._ends = 0.0
        self._ends_s = self._began_s = now_s

    @property
    def is_idle(self) -> bool:
        return not self.in_flight and not self.queue

    def ended(self, now_s: float) -> None:
        """A request gave its place back."""
        self._ends = self._ends * math.exp((self._ends_s - now_s) / _RATE_S) + 1.0
        self._ends_s = now_s

    def wait_s(self, ahead: int, now_s: float) -> float | None:
        """How long `ahead` requests and one more take to get a place, at the rate at which places came free of late.
        None where none ever did."""
        if not self._ends:
            return None
        seen = 1.0 - math.exp((self._began_s - now_s) / _RATE_S)  # of the time that the rate is over
        ends = self._ends * math.exp((self._ends_s - now_s) / _RATE_S)
        rate_per_s = ends / (_RATE_S * max(seen, 1e-3))
        return (ahead + 1) / max(rate_per_s, 1e-3)
