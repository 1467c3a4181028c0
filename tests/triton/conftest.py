"""The embedded pair's model in this run's Triton."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import tritonclient.grpc.aio as grpc_client
from slipstream_engine.embedded import TARGET_DIR
from slipstream_engine.text.tokenizer import Tokenizer

from tests.support.triton_client import TritonModel

SLOTS = 8


@pytest.fixture
async def triton(triton_endpoint: str) -> AsyncIterator[TritonModel]:
    async with grpc_client.InferenceServerClient(triton_endpoint) as client:
        yield TritonModel(client)


@pytest.fixture
def fill_slots(triton: TritonModel) -> Callable[..., Awaitable[list[Any]]]:
    """Take every slot of the engine with endless answers, but for what `inputs` say: their streams, all running."""

    async def fill(**inputs: Any) -> list[Any]:
        streams = [triton.open(**triton.ENDLESS, **inputs, draft_tokens=slot % 3) for slot in range(SLOTS)]
        for stream in streams:
            _, error = await anext(aiter(stream))
            assert error is None
        return streams

    return fill


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """The embedded target's own."""
    return Tokenizer.load(TARGET_DIR)
