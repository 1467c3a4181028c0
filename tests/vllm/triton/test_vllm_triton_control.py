"""Cancellation and the end of drafting, with vLLM inside Triton."""

from __future__ import annotations

import asyncio
import json
import re
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest
from slipstream_engine.embedded import demo
from slipstream_tools.up.triton_server import TritonServer

from tests.contract.engine_client import CHAT, COMPLETION, Engine
from tests.support.pipe_transport import PipeTransport, piped
from tests.vllm.triton.conftest import MODEL

SLOTS = 16  # requests that decode together
LONGEST = 4
ENDLESS: dict[str, Any] = {"path": COMPLETION, "prompt": "a", "ignore_eos": True, "max_tokens": 1500}
SHORT: dict[str, Any] = {"path": COMPLETION, "prompt": "a", "max_tokens": 1}
STOP = piped("POST", "/slipstream/stop_drafting")


async def fill(model: Engine, streams: AsyncExitStack) -> None:
    """Take every place with a running answer."""
    for number in range(SLOTS):
        await anext(await streams.enter_async_context(model.stream(length=number % 5, **ENDLESS)))


async def test_cancelled_streams_free_their_places(vllm_model: Engine) -> None:
    async with AsyncExitStack() as streams:
        await fill(vllm_model, streams)
        waiting = asyncio.create_task(vllm_model.ask(**SHORT))
        done, _ = await asyncio.wait([waiting], timeout=1.0)
        assert not done  # every place is taken, for minutes
    async with asyncio.timeout(60):
        assert (await waiting).ids


async def test_streams_cancelled_at_any_moment_leave_the_server_well(vllm_model: Engine) -> None:
    await vllm_model.cancel_streams(COMPLETION, prompt="a")
    assert (await vllm_model.ask(**SHORT)).ids


async def test_running_streams_go_on_plainly_with_the_same_tokens(vllm_model: Engine) -> None:
    request = {**ENDLESS, "max_tokens": 1200, "length": LONGEST}
    undisturbed = await vllm_model.ask(**request)
    ids: list[int] = []
    last: dict[str, Any] = {}
    async with vllm_model.stream(stream_options={"include_usage": True}, **request) as events:
        async for last in events:
            stops = len(ids) <= 20
            ids += [token for choice in last["choices"] for token in choice["token_ids"]]
            if stops and len(ids) > 20:
                assert await vllm_model.stop_drafting() == 1
    assert tuple(ids) == undisturbed.ids
    drafted = last["metrics"]["speculative_decoding"]["num_draft_tokens"]
    assert 0 < drafted < undisturbed.counts["num_draft_tokens"] / 2
    assert (await vllm_model.ask(**request)).counts["num_draft_tokens"] == undisturbed.counts["num_draft_tokens"]


@pytest.mark.parametrize("stream", [False, True])
async def test_stop_reaches_a_request_that_is_still_rendered(vllm_triton: TritonServer, stream: bool) -> None:
    """On one stream, Triton passes its requests to the model in order: the second overtakes the rendering of the first,
    if the machine does not stand still between the two. A request that the stop misses drafts in every attempt."""
    body = {
        "model": MODEL,
        "messages": demo.CALL_SUMMARY,
        "temperature": 0,
        "max_tokens": 48,
        "vllm_xargs": {"slipstream_draft_length": LONGEST},
        **({"stream": True, "stream_options": {"include_usage": True}} if stream else {}),
    }
    request = piped("POST", CHAT, json.dumps(body).encode())
    assert await drafted(vllm_triton, request) > 0
    stopped = [await drafted(vllm_triton, request, STOP)]
    while stopped[-1] and len(stopped) < 10:
        stopped.append(await drafted(vllm_triton, request, STOP))
    assert 0 in stopped
    assert await drafted(vllm_triton, request) > 0


async def drafted(server: TritonServer, *requests: bytes) -> int:
    """The drafted tokens by vLLM's count in the answer to the first of `requests`, sent on one stream."""
    transport = PipeTransport(f"{server.ports.host}:{server.ports.grpc}", MODEL)
    data = b"".join([piece async for piece in transport.send(list(requests))])
    await transport.aclose()
    [count] = re.findall(rb'"num_draft_tokens": ?(\d+)', data)
    return int(count)


async def test_control_request_is_answered_at_once_under_load(vllm_model: Engine) -> None:
    async with AsyncExitStack() as streams:
        await fill(vllm_model, streams)
        started = time.perf_counter()
        assert await vllm_model.stop_drafting() == SLOTS
        assert time.perf_counter() - started < 5.0
