"""The owners of stored responses, shared by all replicas through Redis.

slipstream:owned:{key id}   sorted set: hashes of the ids of a key's last responses and their items, by the time
                            when they were made. It expires after 30 days without a new one, as OpenAI's state does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from redis.exceptions import RedisError

from slipstream_core.redis.client import client_of, explained
from slipstream_core.redis.condition import Condition
from slipstream_core.redis.redis_url import parse_redis_url

T = TypeVar("T")
MOST_OWNED = 10_000
_KEPT_S = 30 * 86_400
_CONNECT_S = 1.0
_REPLY_S = 0.5


class RedisStateOwners:
    """Never raises: without a reply of Redis, only the gateway that served a response knows its owner. After a failure
    Redis is not asked for `pause_s`, so that few requests wait for it."""

    def __init__(self, url: str, *, pause_s: float = 1.0) -> None:
        """Raises `CommandError` for an invalid `url`. Nothing is sent before the first call."""
        parsed = parse_redis_url(url)
        self._client = client_of(parsed.text, connect_timeout_s=_CONNECT_S)
        self._pause_s = pause_s
        self._asked_again_s = 0.0
        meanwhile = "each gateway knows only those of its own answers"
        self._condition = Condition(
            parsed.shown, what="owners of stored responses", meanwhile=meanwhile, clock=time.monotonic
        )

    async def add(self, owner: str, hashes: Sequence[bytes]) -> None:
        key, now_s = _key(owner), time.time()
        pipe = self._client.pipeline(transaction=False)
        pipe.zadd(key, dict.fromkeys(hashes, now_s))
        pipe.zremrangebyrank(key, 0, -MOST_OWNED - 1)
        pipe.expire(key, _KEPT_S)
        await self._reply(pipe.execute)

    async def has(self, owner: str, hashes: Sequence[bytes]) -> bool | None:
        """Whether all of `hashes` are known as those of `owner`; None without a reply of Redis."""
        members: list[Any] = [*hashes]  # redis-py types them as text
        scores = await self._reply(lambda: self._client.zmscore(_key(owner), members))
        return None if scores is None else None not in scores

    async def _reply(self, ask: Callable[[], Awaitable[T]]) -> T | None:
        """The reply of Redis; None if it fails, or did a moment ago."""
        if time.monotonic() < self._asked_again_s:
            return None
        try:
            async with asyncio.timeout(_REPLY_S):
                reply = await ask()
        except (RedisError, OSError) as exc:  # a TimeoutError is an OSError
            self._asked_again_s = time.monotonic() + self._pause_s
            self._condition.failed(*explained(exc))
            return None
        self._condition.worked()
        return reply

    async def aclose(self) -> None:
        await self._client.aclose()


def _key(owner: str) -> str:
    return f"slipstream:owned:{{{owner}}}"
