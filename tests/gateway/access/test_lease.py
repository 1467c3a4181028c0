"""What an admitted request holds comes back, whatever is wrong with what it took."""

from __future__ import annotations

from typing import Any

import pytest
from slipstream_core.types import Endpoint, GenerationRequest
from slipstream_gateway.access import KeyedAccess, KeyFile, Limiter, LocalLimits


@pytest.fixture
def key(keys: Any) -> str:
    keys.run("price", "--input", "0.1", "--output", "0.4")
    text: str = keys.create("--concurrent", "2", "--usd-per-day", "1")
    return text


async def test_places_come_back_where_the_use_cannot_be_priced(keys: Any, key: str) -> None:
    async with KeyedAccess(KeyFile(keys.path, None), Limiter(LocalLimits()), most_arriving=8) as access:
        caller = access.authenticate(f"Bearer {key}")
        request = GenerationRequest(endpoint=Endpoint.CHAT, model="acme", max_tokens=1000, choices=2)
        lease = await access.admit(caller, request)
        assert access.local_usage(caller).concurrent == 2
        charged = access.local_usage(caller).nano_usd
        with pytest.raises(OverflowError):
            lease.settle(10**400, 0)
        assert access.local_usage(caller).concurrent == 0
        assert access.local_usage(caller).nano_usd == charged > 0
