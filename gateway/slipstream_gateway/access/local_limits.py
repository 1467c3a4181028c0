"""Limits of this process alone, in force without Redis and while Redis is unreachable."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count

from slipstream_core.rate_limits import (
    DAY_S,
    NANO_PER_USD,
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
    communicate, so the division keeps their sum within the limit. A small limit is not divided below one concurrent
    request and one request per minute per process.

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
        now_us, charge = self._clock_us(), self._fitted(charge, limits)
        refusal = self._refusal(state, limits, charge, now_us)
        if refusal is not None:
            return refusal
        return self._take(state, limits, charge, now_us)

    def settle(self, use: Use) -> None:
        """Frees the places, and corrects the charge to what was used."""
        state = self._states.get(use.key_id)
        if state is None:
            return
        state.in_flight = max(state.in_flight - use.charged.places, 0)
        limits, grant, now_us = use.limits, use.grant, self._clock_us()
        if limits.tokens_per_minute is not None:
            more_us = (use.taken.tokens - use.charged.tokens) * interval_us(self._share(limits.tokens_per_minute))
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
        now_us = self._clock_us()
        return InUse(
            self._used(limits.requests_per_minute, state.requests_us, now_us),
            self._used(limits.tokens_per_minute, state.tokens_us, now_us),
            state.in_flight,
            state.nano_usd,
        )

    def _refusal(self, state: _State, limits: Limits, charge: Charge, now_us: float) -> Refusal | None:
        if limits.concurrent is not None:
            most = self._share(limits.concurrent)
            if state.in_flight + charge.places > most:
                retry_after_s = 1.0 if charge.places <= most else None
                return self._refuse(LimitName.CONCURRENT, retry_after_s, state, limits, now_us)
        if limits.usd_per_day is not None:
            self._turn(state)
            budget = self._budget(limits.usd_per_day)
            if state.nano_usd + charge.nano_usd > budget:
                tomorrow_s = DAY_S - self._wall_s() % DAY_S if charge.nano_usd <= budget else None
                return self._refuse(LimitName.BUDGET, tomorrow_s, state, limits, now_us)
        for name, per_minute, until_us, amount in (
            (LimitName.REQUESTS, limits.requests_per_minute, state.requests_us, 1),
            (LimitName.TOKENS, limits.tokens_per_minute, state.tokens_us, charge.tokens),
        ):
            if per_minute is None:
                continue
            step_us = interval_us(self._share(per_minute))
            if amount * step_us > US_PER_MINUTE + 1:
                return self._refuse(name, None, state, limits, now_us)
            wait_us = max(until_us, now_us) + amount * step_us - now_us - US_PER_MINUTE
            if wait_us > 1:
                return self._refuse(name, wait_us / US_PER_S, state, limits, now_us)
        return None

    def _take(self, state: _State, limits: Limits, charge: Charge, now_us: float) -> Grant:
        self._turn(state)
        state.in_flight += charge.places
        state.nano_usd += charge.nano_usd
        if limits.requests_per_minute is not None:
            step_us = interval_us(self._share(limits.requests_per_minute))
            state.requests_us = max(state.requests_us, now_us) + step_us
        if limits.tokens_per_minute is not None:
            step_us = interval_us(self._share(limits.tokens_per_minute))
            state.tokens_us = max(state.tokens_us, now_us) + charge.tokens * step_us
        return Grant(
            lease=str(next(self._leases)),
            requests=self._room(limits.requests_per_minute, state.requests_us, now_us),
            tokens=self._room(limits.tokens_per_minute, state.tokens_us, now_us),
            tokens_until_us=int(state.tokens_us),
            day=state.day,
            charged=charge,
        )

    def _refuse(
        self, name: LimitName, retry_after_s: float | None, state: _State, limits: Limits, now_us: float
    ) -> Refusal:
        return Refusal(
            name,
            retry_after_s,
            self._room(limits.requests_per_minute, state.requests_us, now_us),
            self._room(limits.tokens_per_minute, state.tokens_us, now_us),
        )

    def _room(self, per_minute: int | None, until_us: float, now_us: float) -> Room | None:
        return None if per_minute is None else room(self._share(per_minute), until_us, now_us)

    def _used(self, per_minute: int | None, until_us: float, now_us: float) -> float:
        return used(None if per_minute is None else self._share(per_minute), until_us - now_us)

    def _fitted(self, charge: Charge, limits: Limits) -> Charge:
        tokens, usd = limits.tokens_per_minute, limits.usd_per_day
        most_tokens = None if tokens is None else self._share(tokens)
        return charge.fitted(most_tokens, None if usd is None else self._budget(usd))

    def _budget(self, usd_per_day: float) -> float:
        return usd_per_day * NANO_PER_USD / self._parts

    def _share(self, limit: int) -> int:
        return limit if self._parts == 1 else max(1, limit // self._parts)

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


def room(limit: int, until_us: float, now_us: float) -> Room:
    """The state of a rate of `limit` per minute that is used up to `until_us`."""
    ahead_us = max(until_us - now_us, 0.0)
    return Room(limit, max(0, int((US_PER_MINUTE - ahead_us) / interval_us(limit) + 1e-6)), ahead_us / US_PER_S)
