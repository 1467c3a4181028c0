"""What an admitted request holds comes back, whatever is wrong with what it took."""

from __future__ import annotations

from typing import Any

import pytest
from slipstream_core.types import Endpoint, GenerationRequest
from slipstream_gateway.access import Gate, KeyFile, Limiter, LocalLimits


@pytest.fixture
def key(keys: Any) -> str:
    keys.run("price", "--input", "0.1", "--output", "0.4")
    text: str = keys.create("--concurrent", "2", "--usd-per-day", "1")
    return text


async def test_places_come_back_where_the_use_cannot_be_priced(keys: Any, key: str) -> None:
    async with Gate(KeyFile(keys.path, None), Limiter(LocalLimits())) as gate:
        caller = gate.authenticate(f"Bearer {key}")
        request = GenerationRequest(endpoint=Endpoint.CHAT, model="acme", max_tokens=1000, choices=2)
        lease = await gate.admit(caller, request)
        assert gate.local_usage(caller).concurrent == 2
        charged = gate.local_usage(caller).nano_usd
        with pytest.raises(OverflowError):
            lease.settle(10**400, 0)
        assert gate.local_usage(caller).concurrent == 0
        assert gate.local_usage(caller).nano_usd == charged > 0
