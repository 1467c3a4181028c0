"""Outcomes shared through Redis: one capped stream per pair, written in batches and followed by every replica.

Only the store's own task waits for Redis. A few times per second it makes one round trip, which sends this gateway's
outcomes and fetches those of others. An outcome is sent until Redis acknowledges it, and applied at most once by every
other replica; see `outcome_stream` (numbers, not stored twice) and `inbox` (not applied twice). Lost are outcomes
dropped by a full buffer, those that left a stream before a replica read them, both counted, and those that Redis itself
lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from redis.exceptions import RedisError, ResponseError

from slipstream_core.observation import Observation
from slipstream_core.redis.client import client_of, explained, message_of
from slipstream_core.redis.condition import Backoff, Condition, StoreStatus
from slipstream_core.redis.inbox import Inbox, Position
from slipstream_core.redis.outbox import Outbox
from slipstream_core.redis.outcome_stream import Command, Frame, append_command, read_command
from slipstream_core.redis.redis_url import parse_redis_url

_log = logging.getLogger(__name__)

# Number of exchanges between two checks whether a stream has been replaced.
_EXCHANGES_PER_CHECK = 16
_FIRST_BACKOFF_S = 0.25
_CLOSE_S = 1.0

Apply = Callable[[Observation], None]
Passed = Callable[[str, Position], None]


class RedisStore:
    """An `OutcomeStore` over Redis 6.2 or later.

    `url` is validated here (`CommandError`); `run` connects. `pairs` returns the pairs whose streams are followed,
    before each exchange, because a manifest may change them. An appended outcome is written for any pair. `origin`
    identifies this gateway process in the streams and must be unique. `deadline_s` bounds one exchange, including the
    connection; `stream_entries` caps a stream at that many batches of 1 to 16 outcomes; `meanwhile` is logged: the
    behaviour while Redis is unreachable.

    `append` must be called on the event loop of `run`: they share their state without locks.
    """

    def __init__(
        self,
        url: str,
        *,
        pairs: Callable[[], Iterable[str]],
        origin: str | None = None,
        interval_s: float = 0.25,
        deadline_s: float = 10.0,
        most_backoff_s: float = 5.0,
        buffer_outcomes: int = 20_000,
        stream_entries: int = 1_000,
        meanwhile: str = "this gateway uses its own outcomes alone",
    ) -> None:
        self._url = parse_redis_url(url)
        self.origin = origin or secrets.token_hex(8)
        self._pairs = pairs
        self._interval_s = interval_s
        self._deadline_s = deadline_s
        self._stream_entries = stream_entries
        self._outbox = Outbox(limit=buffer_outcomes, clock=time.monotonic)
        self._inbox = Inbox()
        self._backoff = Backoff(first_s=_FIRST_BACKOFF_S, most_s=most_backoff_s)
        self._condition = Condition(self._url.shown, meanwhile=meanwhile, clock=time.monotonic)
        self._redis = client_of(self._url.text, connect_timeout_s=deadline_s)
        self._until_check = 0
        self._connected = False
        self._read: set[str] = set()

    def __repr__(self) -> str:
        return f"RedisStore({self._url.shown!r}, origin={self.origin!r})"

    def append(self, observation: Observation) -> None:
        """Appends an outcome of this gateway; never waits, never raises, drops the oldest if the buffer is full."""
        self._outbox.append(observation)

    def status(self) -> StoreStatus:
        outbox, inbox = self._outbox, self._inbox
        return StoreStatus(
            connected=self._connected,
            buffered=outbox.buffered,
            dropped=outbox.dropped,
            stored=outbox.acknowledged,
            received=inbox.received,
            missed=inbox.missed,
            duplicates=inbox.duplicates,
            skipped=inbox.skipped,
            rewound=inbox.rewound,
        )

    def resume(self, pair: str, position: Position) -> None:
        """Continues reading `pair` from `position` instead of the beginning of its stream."""
        self._inbox.resume(pair, position)
        self._read.discard(pair)

    def is_read(self, pair: str) -> bool:
        """Whether the whole stream of `pair`, as of the last exchange, has been delivered."""
        return self._connected and pair in self._read

    async def run(self, apply: Apply, passed: Passed | None = None) -> None:
        """Writes appended outcomes and delivers those of other replicas, from the beginning of the streams or from the
        position of `resume`, until cancelled. `apply` must be fast; the event loop runs other tasks after every 16
        outcomes.

        With `passed`, for a consumer that saves its position: it is called with each pair's new position once all
        outcomes up to it are applied. No other task runs between the two, so that both are always consistent; other
        tasks then run after every 128 batches.
        """
        while True:
            try:
                more = await self._exchange(apply, passed)
                self._backoff.reset()
                pause_s = 0.0 if more else self._interval_s
            except Exception as exc:  # top of the task: if it ended, nothing would be shared any more
                if not isinstance(exc, RedisError | OSError):
                    _log.exception("unexpected error in an exchange with Redis")
                await self._lost(exc)
                pause_s = self._backoff.next_s()
            await asyncio.sleep(pause_s)

    async def aclose(self) -> None:
        """Writes the remaining outcomes if Redis responds within a second, and closes the connection. Cancel `run`
        first."""
        if self._connected:
            with contextlib.suppress(RedisError, OSError):
                async with asyncio.timeout(_CLOSE_S):
                    while due := self._outbox.due():
                        self._acknowledge(due, await self._call(self._appends(due)))
        self._connected = False
        await self._disconnect()

    async def _exchange(self, apply: Apply, passed: Passed | None) -> bool:
        """One round trip. Returns whether there is more to send or to read at once."""
        due, pairs = self._outbox.due(), tuple(dict.fromkeys(self._pairs()))
        commands = self._appends(due)
        if pairs:
            positions, check = self._inbox.positions(pairs), self._until_check == 0
            commands.append(read_command(pairs, positions, origin=self.origin, check=check))
        async with asyncio.timeout(self._deadline_s):
            if not self._connected or not commands:
                await self._call(
                    [("PING",)]
                )  # Redis does not reply to long commands of a client that is not authenticated
            replies = await self._call(commands)
        self._connected = True
        self._until_check = (self._until_check or _EXCHANGES_PER_CHECK) - 1
        refusals = self._acknowledge(due, replies)
        unread = pairs and await self._deliver(pairs, replies[-1], apply, passed, refusals)
        if refusals:
            self._condition.failed(refusals[0].split()[0], f"it returned {refusals[0]}")
        elif not self._outbox.refused:
            self._condition.worked()
        return bool(unread) or self._outbox.behind

    def _appends(self, due: Sequence[tuple[str, Sequence[Frame]]]) -> list[Command]:
        most = self._stream_entries
        return [append_command(pair, frames, origin=self.origin, most_entries=most) for pair, frames in due]

    def _acknowledge(self, due: Sequence[tuple[str, Sequence[Frame]]], replies: Sequence[Any]) -> list[str]:
        """Processes the replies to `_appends`; returns the error messages of refused ones."""
        refusals = []
        for (pair, _), reply in zip(due, replies, strict=False):
            stored, *refusal = (0, reply) if isinstance(reply, ResponseError) else reply
            self._outbox.stored(pair, stored, refused=bool(refusal))
            refusals += [f"{message_of(words)} (pair '{pair}')" for words in refusal]
        return refusals

    async def _deliver(
        self, pairs: Sequence[str], reply: Any, apply: Apply, passed: Passed | None, refusals: list[str]
    ) -> bool:
        """Applies the fetched outcomes and adds to `refusals`; returns whether a stream may hold more."""
        self._read &= set(pairs)
        if isinstance(reply, ResponseError):
            self._read.clear()
            refusals.append(message_of(reply))
            return False
        unread = False
        for pair, stream in zip(pairs, reply, strict=True):
            if len(stream) == 1:
                self._read.discard(pair)
                refusals.append(f"{message_of(stream[0])} (pair '{pair}')")
                continue
            if self._inbox.is_resumed(pair):
                continue  # resumed elsewhere since the request
            position, full, skipped, *batches = stream
            for origin, number, payload in zip(batches[::3], batches[1::3], batches[2::3], strict=True):
                for observation in self._inbox.open(pair, origin, number, payload):
                    apply(observation)
                if passed is None:
                    await asyncio.sleep(0)
            further = self._inbox.passed(pair, position, skipped)
            (self._read.discard if full else self._read.add)(pair)
            if passed is not None and further:
                passed(pair, self._inbox.position(pair))
                await asyncio.sleep(0)
            unread = unread or bool(full)
        return unread

    async def _call(self, commands: Sequence[Command]) -> list[Any]:
        """The replies to `commands`, sent at once; a refused command has its `ResponseError`."""
        pipeline = self._redis.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        return await pipeline.execute(raise_on_error=False)

    async def _lost(self, error: Exception) -> None:
        self._connected = False
        self._until_check = 0
        self._condition.failed(*explained(error))
        await self._disconnect()

    async def _disconnect(self) -> None:
        with contextlib.suppress(RedisError, OSError):
            async with asyncio.timeout(_CLOSE_S):
                await self._redis.connection_pool.disconnect(inuse_connections=True)
