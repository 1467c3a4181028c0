"""Admits requests to each pair, within one cap for the gateway."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

import msgspec
from slipstream_core.errors import DeadlineExceeded, Overloaded
from slipstream_core.settings import OverloadSettings
from slipstream_core.types import ANONYMOUS, Caller

from slipstream_gateway.admission.fair_queue import Entry, FairQueue
from slipstream_gateway.admission.limit import AdaptiveLimit, Sample
from slipstream_gateway.decide.route.pressure import pressure_of

_RATE_S = 5.0


class PairAdmission(msgspec.Struct, frozen=True, kw_only=True):
    """The admission state of one pair. `latency_ratio` is the ratio of the latency to the usual latency in the last
    window. `waited` counts the admitted requests that had to wait, `waited_s` sums their waits. `refused` counts
    refusals by cause."""

    pair: str
    limit: int
    in_flight: int
    queued: int
    pressure: float
    latency_ratio: float
    waited: int
    waited_s: float
    refused: dict[str, int]


class PairSlots:
    """The places and the queue of one pair. `refused` counts refusals by cause, `waited` the admitted requests that had
    to wait, and `waited_s` sums their waits."""

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
        """Counts a released place."""
        self._ends = self._ends * math.exp((self._ends_s - now_s) / _RATE_S) + 1.0
        self._ends_s = now_s

    def wait_s(self, ahead: int, now_s: float) -> float | None:
        """The expected wait in seconds for a request with `ahead` requests before it, at the recent rate of released
        places. None: no place has been released yet."""
        if not self._ends:
            return None
        seen = 1.0 - math.exp((self._began_s - now_s) / _RATE_S)  # the observed share of the averaging time
        ends = self._ends * math.exp((self._ends_s - now_s) / _RATE_S)
        rate_per_s = ends / (_RATE_S * max(seen, 1e-3))
        return (ahead + 1) / max(rate_per_s, 1e-3)


_DEFAULTS = OverloadSettings()
_MOST_IDLE_PAIRS = 256
_SOONEST_RETRY_S, _LATEST_RETRY_S = 1.0, 60.0


class Admission:
    """Limits the requests in flight, per pair and in total. `FairQueue` orders the waiting requests of a pair. If the
    cap for the gateway is the limit, pairs take turns, so that a slow pair does not starve the others."""

    def __init__(
        self,
        *,
        max_in_flight: int,
        max_queued: int,
        queue_timeout_s: float,
        overload: OverloadSettings = _DEFAULTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.in_flight = 0
        self.queued = 0
        self._max_in_flight = max_in_flight
        self._max_queued = max_queued
        self._queue_timeout_s = queue_timeout_s
        self._overload = overload
        self._clock = clock
        self._pairs: dict[str, PairSlots] = {}
        self._waiting: dict[str, PairSlots] = {}  # pairs with a queue, in the order of their turns

    def try_enter(self, pair: str) -> bool:
        """Acquires a free place without waiting. False: no place is free, and `enter` waits for one."""
        slots = self._pairs.get(pair) or self._open(pair)
        if self.in_flight >= self._max_in_flight or slots.in_flight >= slots.limit.value or pair in self._waiting:
            return False
        self.in_flight += 1
        slots.in_flight += 1
        return True

    async def enter(self, pair: str, caller: Caller = ANONYMOUS, deadline_s: float | None = None) -> None:
        """Waits for a place, at most for the queue timeout and until `deadline_s`, by the monotonic clock.

        Raises `Overloaded` if the queue is full, the queue timeout passes, or the expected wait exceeds the deadline.
        Raises `DeadlineExceeded` if the deadline passes.
        """
        began_s = self._clock()
        slots = self._pairs.get(pair) or self._open(pair)
        self._refuse_late(slots, caller, deadline_s, began_s)
        self._make_room(slots, caller)
        entry = self._push(slots, caller)
        wait_s = self._queue_timeout_s if deadline_s is None else min(self._queue_timeout_s, deadline_s - began_s)
        try:
            async with asyncio.timeout(wait_s):
                await entry.item
        except TimeoutError as exc:
            self._give_up(slots, entry)
            if wait_s < self._queue_timeout_s:
                self._count(slots, "deadline")
                raise DeadlineExceeded("The request's deadline passed while it waited for a place.") from exc
            self._count(slots, "timeout")
            message = f"No place became free within {self._queue_timeout_s:g} s."
            raise Overloaded(message, retry_after_s=self._retry_after_s(slots, caller)) from exc
        except asyncio.CancelledError:
            self._give_up(slots, entry)
            raise
        slots.waited += 1
        slots.waited_s += self._clock() - began_s

    def leave(self, pair: str, sample: Sample | None = None, *, refused: bool = False) -> None:
        """Releases the place, and assigns it to the next waiting request. `sample`: the measurements of a request that
        succeeded. `refused`: the server refused the request because of overload."""
        slots, now_s = self._pairs[pair], self._clock()
        if sample is not None:
            slots.limit.record(sample, in_flight=slots.in_flight, now_s=now_s)
        elif refused:
            slots.limit.drop(in_flight=slots.in_flight)
        slots.ended(now_s)
        slots.in_flight -= 1
        self.in_flight -= 1
        if self._waiting:
            self._let_in()

    def pressure(self, pair: str, *, inside: bool = False) -> float:
        """The pressure on the pair or on the gateway, whichever is higher, in [0, 1]; see `decide.route.pressure`.
        `inside`: the request in question has a place already, which is not counted."""
        slots = self._pairs.get(pair)
        return 0.0 if slots is None else self._pressure(slots, own=int(inside))

    def snapshot(self) -> tuple[PairAdmission, ...]:
        """The admission state of each pair, for metrics and the console."""
        return tuple(
            PairAdmission(
                pair=slots.pair,
                limit=slots.limit.value,
                in_flight=slots.in_flight,
                queued=len(slots.queue),
                pressure=self._pressure(slots),
                latency_ratio=slots.limit.ratio,
                waited=slots.waited,
                waited_s=slots.waited_s,
                refused=dict(slots.refused),
            )
            for slots in list(self._pairs.values())
        )

    def _open(self, pair: str) -> PairSlots:
        if len(self._pairs) >= _MOST_IDLE_PAIRS:  # a change of the manifest may replace pairs
            for name in [name for name, slots in self._pairs.items() if slots.is_idle]:
                del self._pairs[name]
        overload = self._overload
        limit = AdaptiveLimit(
            least=overload.min_limit,
            most=self._max_in_flight,
            tolerance=overload.tolerance,
            adaptive=overload.adaptive,
        )
        slots = self._pairs[pair] = PairSlots(pair, limit, self._clock())
        return slots

    def _pressure(self, slots: PairSlots, own: int = 0) -> float:
        """The higher of two pressures: that on the pair's own limit, and that on the cap for all pairs."""
        waiting = slots.pair in self._waiting
        return max(
            pressure_of(slots.in_flight - own, slots.limit.value, waiting=waiting),
            pressure_of(self.in_flight - own, self._max_in_flight, waiting=waiting),
        )

    def _refuse_late(self, slots: PairSlots, caller: Caller, deadline_s: float | None, now_s: float) -> None:
        if deadline_s is None:
            return
        if deadline_s <= now_s:
            self._count(slots, "deadline")
            raise DeadlineExceeded("The request's deadline passed before it could begin.")
        wait_s = slots.wait_s(slots.queue.ahead(caller.priority, caller.key_id), now_s)
        if wait_s is not None and now_s + wait_s > deadline_s:
            self._count(slots, "cannot_make_it")
            message = f"A place is expected in {wait_s:.1f} s, after the request's deadline."
            raise Overloaded(message, retry_after_s=self._retry_after_s(slots, caller))

    def _make_room(self, slots: PairSlots, caller: Caller) -> None:
        """If the queue is full, drops a waiting request of the pair with the longest queue. Raises `Overloaded` if the
        new request must be refused instead."""
        if self.queued < self._max_queued:
            return
        longest = max(self._waiting.values(), key=lambda waiting: len(waiting.queue), default=slots)
        if len(longest.queue) <= len(slots.queue) + 1:
            longest = slots
        entry = longest.queue.victim(caller.priority, caller.key_id if longest is slots else None)
        self._count(longest if entry is not None else slots, "queue_full")
        message = "Too many requests are in flight and in the queue."
        error = Overloaded(message, retry_after_s=self._retry_after_s(slots, caller))
        if entry is None:
            raise error
        self._discard(longest, entry)
        entry.item.set_exception(error)

    def _push(self, slots: PairSlots, caller: Caller) -> Entry[asyncio.Future[None]]:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = slots.queue.push(place, priority=caller.priority, key=caller.key_id)
        self.queued += 1
        self._waiting.setdefault(slots.pair, slots)
        return entry

    def _let_in(self) -> None:
        """Assigns free places. The pairs take turns, one place each."""
        skipped = 0
        while self.in_flight < self._max_in_flight and skipped < len(self._waiting):
            pair, slots = next(iter(self._waiting.items()))
            del self._waiting[pair]
            if slots.in_flight < slots.limit.value:
                skipped = 0
                self._let_one_in(slots)
            else:
                skipped += 1
            if slots.queue:
                self._waiting[pair] = slots  # at the end: the other pairs have their turns first

    def _let_one_in(self, slots: PairSlots) -> None:
        place = slots.queue.pop()
        if place is None:
            return
        self.queued -= 1
        if not place.done():
            self.in_flight += 1
            slots.in_flight += 1
            place.set_result(None)

    def _give_up(self, slots: PairSlots, entry: Entry[asyncio.Future[None]]) -> None:
        place = entry.item
        if place.done() and not place.cancelled() and place.exception() is None:
            self.leave(slots.pair)  # the place was assigned at the same moment
        else:
            self._discard(slots, entry)

    def _discard(self, slots: PairSlots, entry: Entry[asyncio.Future[None]]) -> None:
        if not entry.gone:
            slots.queue.discard(entry)
            self.queued -= 1
        if not slots.queue:
            self._waiting.pop(slots.pair, None)

    def _retry_after_s(self, slots: PairSlots, caller: Caller) -> float:
        """The time in seconds until a place is expected for a retry, from 1 to 60."""
        wait_s = slots.wait_s(slots.queue.ahead(caller.priority, caller.key_id), self._clock())
        return min(max(wait_s or 0.0, _SOONEST_RETRY_S), _LATEST_RETRY_S)

    def _count(self, slots: PairSlots, cause: str) -> None:
        slots.refused[cause] = slots.refused.get(cause, 0) + 1
