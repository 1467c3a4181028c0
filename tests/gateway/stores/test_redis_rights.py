"""The Redis user with the rights that docs/state.md names."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slipstream_core.rate_limits import Charge, Grant, Limits, Use
from slipstream_core.redis.redis_state_owners import RedisStateOwners

from tests.gateway.stores.conftest import gateways
from tests.support.polling import soon

STATE = Path(__file__).parents[3] / "docs/state.md"
LIMITS = Limits(requests_per_minute=10, tokens_per_minute=100, concurrent=2, usd_per_day=1.0)


async def test_documented_rights_suffice_for_outcomes_limits_and_owners(redis_server: Any, replica: Any) -> None:
    server = redis_server()
    [documented] = [line for line in STATE.read_text().splitlines() if line.startswith("- The user needs")]
    with server.client() as client:
        rights = re.findall(r"\+[@a-z]+", documented)
        client.acl_setuser("gateway", enabled=True, passwords=["+pw"], keys=["slipstream:*"], commands=rights)
        url = server.url.replace("redis://", "redis://gateway:pw@")
        store: Callable[[], Any] = replica(url).store.status
        await soon(lambda: store().connected, "the connection of the outcomes")
        async with gateways(url, 1) as [limits]:
            grant = await limits.admit("key", LIMITS, Charge(10, 10, 1))
            assert isinstance(grant, Grant)
            limits.settle(Use("key", LIMITS, grant, Charge(10, 10, 1), Charge(5, 5, 1)))
            assert await limits.usage([("key", LIMITS)]) is not None
        owners = RedisStateOwners(url)
        await owners.add("key", [b"hash"])
        assert await owners.has("key", [b"hash"])
        await owners.aclose()
        assert client.acl_log() == []
