"""What callers use of their limits, as a real Redis tells it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from slipstream_core.rate_limits import Charge, Grant, InUse, Limits, Use
from slipstream_core.redis.limit_usage import RedisUsage

from tests.gateway.stores.conftest import gateways
from tests.support.polling import PATIENCE_S, soon
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.integration

LIMITS = Limits(requests_per_minute=1, tokens_per_minute=60_000, concurrent=5, usd_per_day=1.0)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis that is only slow, as all is on a busy machine, is not one that is away."""
    monkeypatch.setattr("slipstream_core.redis.limit_usage._ANSWERS_S", PATIENCE_S)


@contextlib.asynccontextmanager
async def reading(url: str) -> AsyncIterator[RedisUsage]:
    usage = RedisUsage(url)
    try:
        yield usage
    finally:
        await usage.aclose()


async def test_it_is_what_other_gateways_granted(redis: RedisServer) -> None:
    async with gateways(redis.url, 1) as (limits,), reading(redis.url) as usage:
        grant = await limits.admit("used", LIMITS, Charge(30_000, 250_000_000))
        assert isinstance(grant, Grant)
        found = await usage.read([("used", LIMITS), ("never", LIMITS), ("used", Limits(concurrent=1))])
        assert found is not None
        assert 0.5 < found[0].requests <= 1.0
        assert 100 < found[0].tokens <= 30_000
        assert (found[0].concurrent, found[0].nano_usd) == (1, 250_000_000)
        assert found[1] == InUse()
        assert (found[2].requests, found[2].tokens) == (0.0, 0.0)  # no such limits
        limits.settle(Use("used", LIMITS, grant, Charge(30_000, 250_000_000), Charge(5, 10)))
        async with asyncio.timeout(PATIENCE_S):
            while found is None or found[0].concurrent:
                found = await usage.read([("used", LIMITS)])
        assert found[0].nano_usd == 10


async def test_it_is_not_known_while_redis_is_away_and_again_when_it_is_back(redis: RedisServer) -> None:
    async with reading(redis.url) as usage:
        assert await usage.read([("never", LIMITS)]) == [InUse()]
        redis.stop()
        assert await usage.read([("never", LIMITS)]) is None
        redis.start()
        await soon(lambda: usage.read([("never", LIMITS)]), "an answer of Redis")


async def test_several_may_ask_at_once(redis: RedisServer) -> None:
    async with reading(redis.url) as usage:
        found = await asyncio.gather(*(usage.read([("never", LIMITS)] * count) for count in range(1, 6)))
        assert found == [[InUse()] * count for count in range(1, 6)]
