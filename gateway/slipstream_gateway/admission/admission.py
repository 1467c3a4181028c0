"""Lets requests in, pair by pair, within one cap for the worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from slipstream_core.errors import DeadlineExceeded, Overloaded
from slipstream_core.settings import OverloadSettings
from slipstream_core.types import ANONYMOUS, Caller

from slipstream_gateway.admission.fair_queue import Entry
from slipstream_gateway.admission.gate import Gate, GateState
from slipstream_gateway.admission.latency import Sample
from slipstream_gateway.admission.limit import AdaptiveLimit
from slipstream_gateway.decide.route.pressure import pressure_of

_DEFAULTS = OverloadSettings()
_MOST_IDLE_GATES = 256
_SOONEST_RETRY_S, _LATEST_RETRY_S = 1.0, 60.0


class Admission:
    """Counts requests in flight, of each pair and in all. Who waits is let in as `fair_queue` says; pairs take turns
    where the cap is what holds them back, so that a slow one does not starve others."""

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
        self._gates: dict[str, Gate] = {}
        self._waiting: dict[str, Gate] = {}  # gates with a queue, in the order of their turns

    def try_enter(self, pair: str) -> bool:
        """Takes a place if one is free, at no cost; else `enter` waits for one."""
        gate = self._gates.get(pair) or self._open(pair)
        if self.in_flight >= self._max_in_flight or gate.in_flight >= gate.limit.value or pair in self._waiting:
            return False
        self.in_flight += 1
        gate.in_flight += 1
        return True

    async def enter(self, pair: str, caller: Caller = ANONYMOUS, deadline_s: float | None = None) -> None:
        """Waits for a place, never beyond `deadline_s`.

        Raises `Overloaded` where the queue is full, the wait too long, or so long that the deadline cannot be met;
        `DeadlineExceeded` where it passes meanwhile."""
        began_s = self._clock()
        gate = self._gates.get(pair) or self._open(pair)
        self._refuse_late(gate, caller, deadline_s, began_s)
        self._make_room(gate, caller)
        entry = self._push(gate, caller)
        wait_s = self._queue_timeout_s if deadline_s is None else min(self._queue_timeout_s, deadline_s - began_s)
        try:
            async with asyncio.timeout(wait_s):
                await entry.item
        except TimeoutError as exc:
            self._give_up(gate, entry)
            if wait_s < self._queue_timeout_s:
                self._count(gate, "deadline")
                raise DeadlineExceeded("The request's deadline passed while it waited for a place.") from exc
            self._count(gate, "timeout")
            message = f"No place became free within {self._queue_timeout_s:g} s."
            raise Overloaded(message, retry_after_s=self._retry_after_s(gate, caller)) from exc
        except asyncio.CancelledError:
            self._give_up(gate, entry)
            raise
        gate.waited += 1
        gate.waited_s += self._clock() - began_s

    def leave(self, pair: str, sample: Sample | None = None, *, refused: bool = False) -> None:
        """Gives the place back, or on to the next that waits. `sample`: how long the request took, where it ended
        well. `refused`: the server had too much to do."""
        gate, now_s = self._gates[pair], self._clock()
        if sample is not None:
            gate.limit.record(sample, in_flight=gate.in_flight, now_s=now_s)
        elif refused:
            gate.limit.drop(in_flight=gate.in_flight)
        gate.ended(now_s)
        gate.in_flight -= 1
        self.in_flight -= 1
        if self._waiting:
            self._let_in()

    def pressure(self, pair: str, *, inside: bool = False) -> float:
        """In [0, 1], as `routing.pressure` says: how much of what may run is running, of the pair or of the worker.
        `inside`: for a request that has a place itself, which does not count."""
        gate = self._gates.get(pair)
        return 0.0 if gate is None else self._pressure(gate, own=int(inside))

    def snapshot(self) -> tuple[GateState, ...]:
        """Every pair's way in, for somebody who looks."""
        now_s = self._clock()
        return tuple(
            GateState(
                pair=gate.pair,
                limit=gate.limit.value,
                in_flight=gate.in_flight,
                queued=len(gate.queue),
                pressure=self._pressure(gate),
                latency_ratio=gate.limit.ratio,
                expected_wait_s=(gate.wait_s(len(gate.queue), now_s) or 0.0) if gate.queue else 0.0,
                waited=gate.waited,
                waited_s=gate.waited_s,
                refused=dict(gate.refused),
            )
            for gate in list(self._gates.values())
        )

    def _open(self, pair: str) -> Gate:
        if len(self._gates) >= _MOST_IDLE_GATES:  # pairs come and go with the manifest
            for name in [name for name, gate in self._gates.items() if gate.is_idle]:
                del self._gates[name]
        overload = self._overload
        limit = AdaptiveLimit(
            least=overload.min_limit,
            most=self._max_in_flight,
            tolerance=overload.tolerance,
            adaptive=overload.adaptive,
        )
        gate = self._gates[pair] = Gate(pair, limit, self._clock())
        return gate

    def _pressure(self, gate: Gate, own: int = 0) -> float:
        """The pair's own limit or the cap for all pairs, whichever leaves less."""
        waiting = bool(gate.queue)
        return max(
            pressure_of(gate.in_flight - own, gate.limit.value, waiting=waiting),
            pressure_of(self.in_flight - own, self._max_in_flight, waiting=waiting),
        )

    def _refuse_late(self, gate: Gate, caller: Caller, deadline_s: float | None, now_s: float) -> None:
        if deadline_s is None:
            return
        if deadline_s <= now_s:
            self._count(gate, "deadline")
            raise DeadlineExceeded("The request's deadline passed before it could begin.")
        wait_s = gate.wait_s(gate.queue.ahead(caller.priority), now_s)
        if wait_s is not None and now_s + wait_s > deadline_s:
            self._count(gate, "cannot_make_it")
            message = f"A place is expected in {wait_s:.1f} s, after the request's deadline."
            raise Overloaded(message, retry_after_s=self._retry_after_s(gate, caller))

    def _make_room(self, gate: Gate, caller: Caller) -> None:
        """Where the queue is full, somebody gives way: of the pair with the most that wait, or the newcomer."""
        if self.queued < self._max_queued:
            return
        longest = max(self._waiting.values(), key=lambda waiting: len(waiting.queue), default=gate)
        if len(longest.queue) <= len(gate.queue) + 1:
            longest = gate
        entry = longest.queue.victim(caller.priority, caller.key_id if longest is gate else None)
        self._count(longest if entry is not None else gate, "queue_full")
        message = "Too many requests are in flight and in the queue."
        error = Overloaded(message, retry_after_s=self._retry_after_s(gate, caller))
        if entry is None:
            raise error
        self._discard(longest, entry)
        entry.item.set_exception(error)

    def _push(self, gate: Gate, caller: Caller) -> Entry[asyncio.Future[None]]:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = gate.queue.push(place, priority=caller.priority, key=caller.key_id)
        self.queued += 1
        self._waiting.setdefault(gate.pair, gate)
        return entry

    def _let_in(self) -> None:
        """Hands free places out: pairs take turns, one place each."""
        skipped = 0
        while self.in_flight < self._max_in_flight and skipped < len(self._waiting):
            pair, gate = next(iter(self._waiting.items()))
            del self._waiting[pair]
            if gate.in_flight < gate.limit.value:
                skipped = 0
                self._let_one_in(gate)
            else:
                skipped += 1
            if gate.queue:
                self._waiting[pair] = gate  # at the end: the others come first now

    def _let_one_in(self, gate: Gate) -> None:
        place = gate.queue.pop()
        if place is None:
            return
        self.queued -= 1
        if not place.done():
            self.in_flight += 1
            gate.in_flight += 1
            place.set_result(None)

    def _give_up(self, gate: Gate, entry: Entry[asyncio.Future[None]]) -> None:
        place = entry.item
        if place.done() and not place.cancelled() and place.exception() is None:
            self.leave(gate.pair)  # the place came in the same moment: hand it on
        else:
            self._discard(gate, entry)

    def _discard(self, gate: Gate, entry: Entry[asyncio.Future[None]]) -> None:
        if not entry.gone:
            gate.queue.discard(entry)
            self.queued -= 1
        if not gate.queue:
            self._waiting.pop(gate.pair, None)

    def _retry_after_s(self, gate: Gate, caller: Caller) -> float:
        """When a place may be there for who comes back then."""
        wait_s = gate.wait_s(gate.queue.ahead(caller.priority), self._clock())
        return min(max(wait_s or 0.0, _SOONEST_RETRY_S), _LATEST_RETRY_S)

    def _count(self, gate: Gate, cause: str) -> None:
        gate.refused[cause] = gate.refused.get(cause, 0) + 1
