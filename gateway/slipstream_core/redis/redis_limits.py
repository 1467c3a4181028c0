"""Limits shared by all replicas through Redis: one round trip per request for all of its limits.

Requests that arrive during a round trip are sent together in the next. Settlements are sent with a request, or alone a
millisecond later, and no request waits for them. If Redis does not respond within a deadline it counts as unreachable:
until it responds to a probe, `admit` returns at once, and the caller decides locally. A late reply is still read: a
message that Redis has taken must not be sent again, or slow Redis would charge a budget at each attempt.

Lost messages make the limits stricter, never more generous. A place whose grant did not arrive is freed when its lease
expires. A refund is never sent twice, an additional charge is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from redis.exceptions import NoScriptError, RedisError

from slipstream_core.rate_limits import (
    US_PER_S,
    Charge,
    Grant,
    InUse,
    Limits,
    Refusal,
    Use,
    room,
)
from slipstream_core.redis.client import explained
from slipstream_core.redis.condition import Backoff, Condition
from slipstream_core.redis.limit_scripts import (
    ADMIT,
    REFUSED_BY,
    RENEW,
    SETTLE,
    Command,
    ScriptLine,
)
from slipstream_core.redis.limit_usage import RedisUsage
from slipstream_core.redis.redis_url import parse_redis_url

EXCHANGE_S = 0.025  # a request waits for the running exchange and for its own
LEASE_S = 30.0
RENEW_S = 10.0
MOST_AT_ONCE = 128
MOST_UNSETTLED = 20_000
SETTLE_S = 0.001  # how long a settlement waits for a request to be sent with, because an exchange of its own costs more
_PROBE_S = 1.0
_LATE_S = 1.0
_CLOSE_S = 1.0
_ROUNDING = 1e-3  # Redis' instants are in whole µs
_log = logging.getLogger(__name__)


class _Waiting(NamedTuple):
    """A request that waits for admission, and the future of its result."""

    answer: asyncio.Future[Grant | Refusal | None]
    key_id: str
    limits: Limits
    charge: Charge
    lease: str

    def command(self) -> Command:
        limits, charge = self.limits, self.charge
        rates = (limits.requests_per_minute or 0, limits.tokens_per_minute or 0)
        most = (*rates, limits.concurrent or 0, limits.nano_usd_per_day or 0)
        takes = (charge.tokens, charge.nano_usd, charge.places)
        return Command(ADMIT, self.key_id, (*most, *takes, int(LEASE_S * US_PER_S), *self.places()))

    def places(self) -> Sequence[str]:
        """The names of the leases that it takes; none if the places of its caller are not limited."""
        return () if self.limits.concurrent is None else _places(self.lease, self.charge)


class RedisLimits:
    """`SharedLimits` over Redis 6.2 or later. `url` is validated here (`CommandError`); `run` connects."""

    def __init__(self, url: str, *, exchange_s: float = EXCHANGE_S, most_backoff_s: float = 1.0) -> None:
        parsed = parse_redis_url(url)
        self._shown = parsed.shown
        self._line = ScriptLine(parsed.text, (ADMIT, SETTLE, RENEW))
        self._usage = RedisUsage(parsed.text)
        self._exchange_s = exchange_s
        self._backoff = Backoff(first_s=0.05, most_s=most_backoff_s)
        self._condition = Condition(
            self._shown, what="limits", meanwhile="each gateway applies them by itself", clock=time.monotonic
        )
        self._origin = secrets.token_hex(6)
        self._numbers = count()
        self._waiting: deque[_Waiting] = deque()
        self._unsettled: deque[Command] = deque(maxlen=MOST_UNSETTLED)
        self._held: dict[str, str] = {}
        self._renewed_s = time.monotonic()
        self._wake = asyncio.Event()
        self._settling: asyncio.TimerHandle | None = None
        self._connected = False

    def __repr__(self) -> str:
        return f"RedisLimits({self._shown!r})"

    @property
    def connected(self) -> bool:
        return self._connected

    async def admit(self, key_id: str, limits: Limits, charge: Charge) -> Grant | Refusal | None:
        """None if Redis is unreachable: at once if that is known, else after at most two deadlines of an exchange."""
        if not self._connected:
            return None
        answer: asyncio.Future[Grant | Refusal | None] = asyncio.get_running_loop().create_future()
        lease = f"{self._origin}-{next(self._numbers)}"
        one = _Waiting(answer, key_id, limits, charge.fitted(limits), lease)
        self._waiting.append(one)
        self._wake.set()
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled():  # the caller was cancelled while its grant was on the way
                self._give_back(one, answer.result())
            raise

    def settle(self, use: Use) -> None:
        """Sent with the next exchange. Of a grant that was made locally, only the spending is sent."""
        limits, grant = use.limits, use.grant
        if not grant.shared:
            if limits.usd_per_day is None or not use.taken.nano_usd:
                return
            arguments: tuple[str | int, ...] = (0, 0, use.taken.nano_usd, 0, grant.day)
        else:
            held = [name for name in _places(grant.lease, use.charged) if self._held.pop(name, None) is not None]
            tokens, usd = use.taken.tokens - use.charged.tokens, use.taken.nano_usd - use.charged.nano_usd
            tpm = limits.tokens_per_minute or 0
            if not held and not (tpm and tokens) and not usd:
                return
            arguments = (tpm, tokens, usd, grant.tokens_until_us, grant.day, *held)
        self._unsettled.append(Command(SETTLE, use.key_id, arguments))
        if self._settling is None:
            self._settling = asyncio.get_running_loop().call_later(SETTLE_S, self._wake.set)

    async def usage(self, callers: Sequence[tuple[str, Limits]]) -> Sequence[InUse] | None:
        return await self._usage.read(callers) if self._connected else None

    async def run(self) -> None:
        """Exchanges messages with Redis until cancelled."""
        try:
            while True:
                try:
                    await self._turn()
                except (
                    Exception
                ) as exc:  # top of the task: if it ended, no request would be admitted through Redis again
                    if not isinstance(exc, RedisError | OSError):
                        _log.exception("unexpected error in the limits through Redis")
                    await self._lost(exc)
        finally:
            self._connected = False
            self._refuse_to_decide()

    async def aclose(self) -> None:
        """Sends the remaining settlements if Redis responds within a second. Cancel `run` first."""
        with contextlib.suppress(RedisError, OSError):
            async with asyncio.timeout(_CLOSE_S):
                if self._unsettled:
                    await self._line.connect()  # the previous one may have been cancelled in the middle of an exchange
                while self._unsettled:
                    commands = [self._unsettled.popleft() for _ in range(min(len(self._unsettled), MOST_AT_ONCE))]
                    await self._line.call(commands)
        await self._line.disconnect()
        await self._usage.aclose()

    async def _turn(self) -> None:
        """One exchange, or one probe."""
        if not self._connected:
            async with asyncio.timeout(_PROBE_S):
                await self._line.connect()
            self._connected = True
            self._backoff.reset()
            self._wake.set()  # for settlements that could not be sent before
            return
        pause_s = max(self._renewed_s + RENEW_S - time.monotonic(), 0.0)
        if not self._wake.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
        await self._exchange()
        self._condition.worked()

    async def _exchange(self) -> None:
        self._wake.clear()
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        waiting = [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_AT_ONCE))]
        settling = [self._unsettled.popleft() for _ in range(min(len(self._unsettled), MOST_AT_ONCE))]
        renewals = self._renewals()
        # Settlements first: they may free what the next request waits for.
        commands = [*settling, *renewals, *(one.command() for one in waiting)]
        if not commands:
            return
        late = asyncio.get_running_loop().call_later(self._exchange_s, self._stop_waiting, waiting)
        try:
            async with asyncio.timeout(max(self._exchange_s, _LATE_S)):
                replies = await self._line.call(commands)
        except BaseException:
            # It is unknown whether Redis applied them.
            self._unsettled.extendleft(_again(command) for command in reversed(settling))
            self._waiting.extendleft(reversed(waiting))
            raise
        finally:
            late.cancel()
        try:
            for one, reply in zip(waiting, replies[len(commands) - len(waiting) :], strict=True):
                self._answer(one, _verdict(one, reply))
        finally:  # a caller with a malformed reply decides locally and does not wait for ever
            self._waiting.extendleft(one for one in waiting if not one.answer.done())
        if not self._connected:
            raise TimeoutError("the reply came after its deadline")
        if self._waiting or (self._unsettled and self._settling is None):
            self._wake.set()

    def _stop_waiting(self, waiting: Sequence[_Waiting]) -> None:
        """Lets the requests of the running exchange and those behind it decide locally. If the late reply grants one of
        them a place, that is given back."""
        self._connected = False
        self._waiting.extendleft(reversed(waiting))
        self._refuse_to_decide()

    def _answer(self, one: _Waiting, verdict: Grant | Refusal) -> None:
        if isinstance(verdict, Grant):
            self._held.update(dict.fromkeys(one.places(), one.key_id))
        if one.answer.done():  # the caller was cancelled, or decided locally
            self._give_back(one, verdict)
        else:
            one.answer.set_result(verdict)

    def _give_back(self, one: _Waiting, verdict: Grant | Refusal | None) -> None:
        if isinstance(verdict, Grant):
            self.settle(Use(one.key_id, one.limits, verdict, one.charge, Charge()))

    def _renewals(self) -> list[Command]:
        """Renewals of the places of running requests."""
        now_s = time.monotonic()
        if now_s - self._renewed_s < RENEW_S:
            return []
        self._renewed_s = now_s
        names: dict[str, list[str]] = {}
        for lease, key_id in self._held.items():
            names.setdefault(key_id, []).append(lease)
        life_us = int(LEASE_S * US_PER_S)
        return [Command(RENEW, key_id, (life_us, *leases)) for key_id, leases in names.items()]

    async def _lost(self, error: Exception) -> None:
        """All waiting callers decide locally, and so do later ones until a probe succeeds."""
        self._connected = False
        self._refuse_to_decide()
        if not isinstance(error, NoScriptError):  # Redis was restarted; the next probe loads the scripts
            self._condition.failed(*explained(error))
            await self._line.disconnect()
            await asyncio.sleep(self._backoff.next_s())

    def _refuse_to_decide(self) -> None:
        while self._waiting:
            one = self._waiting.popleft()
            if not one.answer.done():
                one.answer.set_result(None)


def _places(lease: str, charge: Charge) -> list[str]:
    """The names of the places of a request under `lease`."""
    return [lease, *(f"{lease}.{index}" for index in range(1, charge.places))]


def _again(settling: Command) -> Command:
    """The part of a settlement that may be sent twice."""
    tpm, tokens, usd, *rest = settling.arguments
    return settling._replace(arguments=(tpm, max(int(tokens), 0), max(int(usd), 0), *rest))


def _verdict(one: _Waiting, reply: Sequence[int]) -> Grant | Refusal:
    refused, wait_us, now_us, requests_us, tokens_us, day = reply
    requests = room(one.limits.requests_per_minute, requests_us - now_us, rounding=_ROUNDING)
    tokens = room(one.limits.tokens_per_minute, tokens_us - now_us, rounding=_ROUNDING)
    if refused:
        return Refusal(REFUSED_BY[refused - 1], None if wait_us < 0 else wait_us / US_PER_S, requests, tokens)
    return Grant(one.lease, requests, tokens, tokens_us, day, shared=True, charged=one.charge)
