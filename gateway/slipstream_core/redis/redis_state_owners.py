"""The owners of stored responses, shared by all replicas through Redis.

slipstream:owned:{key id}   sorted set: hashes of the ids of a key's last responses and their items, by the time
                            when they were made. It expires after 30 days without a new one, as OpenAI's state does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from redis.exceptions import RedisError

from slipstream_core.redis.client import client_of, explained
from slipstream_core.redis.condition import Condition
from slipstream_core.redis.redis_url import parse_redis_url

MOST_OWNED = 10_000
_KEPT_S = 30 * 86_400
_CONNECT_S = 1.0
_REPLY_S = 0.5


class RedisStateOwners:
    """Never raises: without a reply of Redis, only the gateway that served a response knows its owner."""

    def __init__(self, url: str) -> None:
        """Raises `CommandError` for an invalid `url`. Nothing is sent before the first call."""
        parsed = parse_redis_url(url)
        self._client = client_of(parsed.text, connect_timeout_s=_CONNECT_S)
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
        try:
            async with asyncio.timeout(_REPLY_S):
                await pipe.execute()
            self._condition.worked()
        except (RedisError, OSError) as exc:  # a TimeoutError is an OSError
            self._condition.failed(*explained(exc))

    async def has(self, owner: str, hashes: Sequence[bytes]) -> bool:
        """Whether all of `hashes` are known as those of `owner`."""
        try:
            async with asyncio.timeout(_REPLY_S):
                return None not in await self._client.zmscore(_key(owner), list(hashes))  # type: ignore[arg-type]  # bytes work, too
        except (RedisError, OSError) as exc:
            self._condition.failed(*explained(exc))
            return False

    async def aclose(self) -> None:
        await self._client.aclose()


def _key(owner: str) -> str:
    return f"slipstream:owned:{{{owner}}}"
