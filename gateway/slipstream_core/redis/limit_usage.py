"""Callers' usage of the shared limits, read from Redis for display."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from redis.exceptions import RedisError

from slipstream_core.rate_limits import InUse, Limits, used
from slipstream_core.redis.limit_scripts import USAGE, Command, ScriptLine

_ANSWERS_S = 0.5


class RedisUsage:
    """It opens its own connection on the first call, so that no request waits for it. `url`: from `parse_redis_url`."""

    def __init__(self, url: str) -> None:
        self._line = ScriptLine(url, (USAGE,))
        self._turn = asyncio.Lock()

    async def read(self, callers: Sequence[tuple[str, Limits]]) -> list[InUse] | None:
        """The usage per caller, in their order; None if Redis does not respond in time."""
        async with self._turn:
            try:
                async with asyncio.timeout(_ANSWERS_S):
                    if not self._line.is_connected:
                        await self._line.connect()
                    replies = await self._line.call([Command(USAGE, key_id, ()) for key_id, _ in callers])
            except (RedisError, OSError):  # the limiter logs that Redis is unreachable
                await self.aclose()
                return None
            except asyncio.CancelledError:  # the reply may still arrive on that connection
                await self.aclose()
                raise
        return [_in_use(limits, reply) for (_, limits), reply in zip(callers, replies, strict=True)]

    async def aclose(self) -> None:
        await self._line.disconnect()


def _in_use(limits: Limits, reply: Sequence[int]) -> InUse:
    requests_us, tokens_us, concurrent, nano_usd = reply
    requests, tokens = used(limits.requests_per_minute, requests_us), used(limits.tokens_per_minute, tokens_us)
    return InUse(requests, tokens, concurrent, nano_usd)
