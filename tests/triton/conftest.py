"""The embedded pair's model in this run's Triton."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from tests.contract.engine_client import COMPLETION, TIMEOUT_S, Engine
from tests.support.pipe_transport import PipeTransport

SLOTS, WAITING = 8, 64
MODEL = "embedded"
ENDLESS: dict[str, Any] = {"path": COMPLETION, "prompt": "a", "ignore_eos": True, "max_tokens": 100_000}
"""An answer that fills its context, with drafts that are all rejected."""
Streams = AsyncExitStack
Fill = Callable[..., Awaitable[Streams]]


@pytest.fixture
async def pipe(triton_endpoint: str) -> AsyncIterator[PipeTransport]:
    transport = PipeTransport(triton_endpoint, MODEL)
    yield transport
    await transport.aclose()


@pytest.fixture
async def triton(pipe: PipeTransport) -> Engine:
    return await Engine.of(httpx.AsyncClient(base_url="http://triton", transport=pipe, timeout=TIMEOUT_S))


@pytest.fixture
async def fill_slots(triton: Engine, async_exit_stack: AsyncExitStack) -> Fill:
    """Take every slot of the engine with running answers, endless unless `more` limits them. Closing what it returns
    disconnects their clients."""

    async def fill(**more: Any) -> Streams:
        streams = await async_exit_stack.enter_async_context(AsyncExitStack())
        for slot in range(SLOTS):
            stream = triton.stream(length=slot % 3, **{**ENDLESS, **more})
            await anext(await streams.enter_async_context(stream))
        return streams

    return fill
