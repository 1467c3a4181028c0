"""Limits of this process alone, in force without Redis and while Redis is unreachable."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count

from slipstream_core.rate_limits import (
    DAY_S,
    US_PER_MINUTE,
    US_PER_S,
    Charge,
    Grant,
    InUse,
    LimitName,
    Limits,
    Refusal,
    Room,
    Use,
    interval_us,
    refund_us,
    room,
    used,
)

MOST_CALLERS = 10_000


class _State:
    """The usage of one caller. Instants are µs of this process's clock; `day` is a UTC day."""

    __slots__ = ("day", "in_flight", "nano_usd", "requests_us", "tokens_us")

    def __init__(self) -> None:
        self.requests_us = 0.0
        self.tokens_us = 0.0
        self.in_flight = 0
        self.day = 0
        self.nano_usd = 0


class LocalLimits:
    """Grants each caller its limits divided by `parts`, the number of processes of a gateway. The processes do not
    communicate, so the division keeps their sum within the limit, unless it is a small one (`Limits.divided`).

    A caller is dropped from memory once it has no request in flight, its rates have recovered and it has spent nothing
    today.
    """

    def __init__(
        self,
        *,
        parts: int = 1,
        clock_us: Callable[[], float] = lambda: time.monotonic_ns() / 1000,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._parts = parts
        self._clock_us = clock_us
        self._wall_s = wall_s
        self._states: dict[str, _State] = {}
        self._look_at = MOST_CALLERS
        self._leases = count()

    def admit(self, key_id: str, limits: Limits, charge: Charge) -> Grant | Refusal:
        """Takes `charge` with its places, or nothing."""
        state = self._states.get(key_id)
        if state is None:
            state = self._new_state(key_id)
        now_us, limits = self._clock_us(), self.share(limits)
        charge = charge.fitted(limits)
        refused = self._refusal(state, limits, charge, now_us)
        if refused is None:
            return self._take(state, limits, charge, now_us)
        return Refusal(*refused, *_rooms(state, limits, now_us))

    def settle(self, use: Use) -> None:
        """Frees the places, and corrects the charge to what was used."""
        state = self._states.get(use.key_id)
        if state is None:
            return
        state.in_flight = max(state.in_flight - use.charged.places, 0)
        limits, grant, now_us = self.share(use.limits), use.grant, self._clock_us()
        if limits.tokens_per_minute is not None:
            more_us = (use.taken.tokens - use.charged.tokens) * interval_us(limits.tokens_per_minute)
            if more_us > 0:
                state.tokens_us = max(state.tokens_us, now_us) + more_us
            else:
                state.tokens_us -= refund_us(-more_us, grant.tokens_until_us, now_us)
        self._turn(state)
        more = use.taken.nano_usd - use.charged.nano_usd
        if more > 0 or grant.day == state.day:  # a charge of yesterday is not credited today
            state.nano_usd = max(state.nano_usd + more, 0)

    def usage(self, key_id: str, limits: Limits) -> InUse:
        """The usage of a caller within the limits of this process."""
        state = self._states.get(key_id)
        if state is None:
            return InUse()
        self._turn(state)
        now_us, limits = self._clock_us(), self.share(limits)
        return InUse(
            used(limits.requests_per_minute, state.requests_us - now_us),
            used(limits.tokens_per_minute, state.tokens_us - now_us),
            state.in_flight,
            state.nano_usd,
        )

    def share(self, limits: Limits) -> Limits:
        """The part of `limits` that this process grants."""
        return limits.divided(self._parts)

    def _refusal(
        self, state: _State, limits: Limits, charge: Charge, now_us: float
    ) -> tuple[LimitName, float | None] | None:
        """The limit that refuses `charge`, and the time until it may be retried. None: it is granted."""
        most, budget = limits.concurrent, limits.nano_usd_per_day
        if most is not None and state.in_flight + charge.places > most:
            return LimitName.CONCURRENT, 1.0 if charge.places <= most else None
        if budget is not None:
            self._turn(state)
            if state.nano_usd + charge.nano_usd > budget:
                return LimitName.BUDGET, DAY_S - self._wall_s() % DAY_S if charge.nano_usd <= budget else None
        for name, per_minute, until_us, amount in (
            (LimitName.REQUESTS, limits.requests_per_minute, state.requests_us, 1),
            (LimitName.TOKENS, limits.tokens_per_minute, state.tokens_us, charge.tokens),
        ):
            if per_minute is None:
                continue
            taken_us = amount * interval_us(per_minute)
            if taken_us > US_PER_MINUTE + 1:
                return name, None
            wait_us = max(until_us, now_us) + taken_us - now_us - US_PER_MINUTE
            if wait_us > 1:
                return name, wait_us / US_PER_S
        return None

    def _take(self, state: _State, limits: Limits, charge: Charge, now_us: float) -> Grant:
        self._turn(state)
        state.in_flight += charge.places
        state.nano_usd += charge.nano_usd
        if limits.requests_per_minute is not None:
            state.requests_us = max(state.requests_us, now_us) + interval_us(limits.requests_per_minute)
        if limits.tokens_per_minute is not None:
            taken_us = charge.tokens * interval_us(limits.tokens_per_minute)
            state.tokens_us = max(state.tokens_us, now_us) + taken_us
        requests, tokens = _rooms(state, limits, now_us)
        return Grant(
            lease=str(next(self._leases)),
            requests=requests,
            tokens=tokens,
            tokens_until_us=int(state.tokens_us),
            day=state.day,
            charged=charge,
        )

    def _turn(self, state: _State) -> None:
        """Resets the budget on a new day."""
        today = int(self._wall_s() // DAY_S)
        if state.day != today:
            state.day, state.nano_usd = today, 0

    def _new_state(self, key_id: str) -> _State:
        if len(self._states) >= self._look_at:
            self._forget()
            self._look_at = max(
                MOST_CALLERS, 2 * len(self._states)
            )  # incremental, so that the clean-up costs each new caller little
        state = self._states[key_id] = _State()
        self._turn(state)
        return state

    def _forget(self) -> None:
        now_us, today = self._clock_us(), int(self._wall_s() // DAY_S)
        for key_id, state in list(self._states.items()):
            recovered = max(state.requests_us, state.tokens_us) <= now_us
            if recovered and not state.in_flight and (state.day != today or not state.nano_usd):
                del self._states[key_id]


def _rooms(state: _State, limits: Limits, now_us: float) -> tuple[Room | None, Room | None]:
    """The rates of requests and of tokens."""
    return (
        room(limits.requests_per_minute, state.requests_us - now_us),
        room(limits.tokens_per_minute, state.tokens_us - now_us),
    )
