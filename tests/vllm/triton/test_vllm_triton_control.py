"""Cancellation, the end of drafting and resumption, with vLLM behind the tensors."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import tritonclient.grpc.aio as grpc_client
from slipstream_engine.embedded import demo

from tests.support.triton_client import tensor

SLOTS = 16  # requests that decode together
LONGEST = 4
ENDLESS: dict[str, Any] = {"text_input": "a", "temperature": 0.0, "max_tokens": 1500, "stream": True}
SUMMARY: dict[str, Any] = {"messages": demo.CALL_SUMMARY, "temperature": 0.0, "max_tokens": 96}


async def _open(model: Any, **inputs: Any) -> Any:
    """A stream whose first part has come."""
    stream = model.open(**inputs)
    _, error = await anext(aiter(stream))
    assert error is None
    return stream


async def _control(model: Any) -> None:
    async for _, error in model.open(stop_drafting=True):
        assert error is None


async def test_cancelled_streams_free_their_places(vllm_model: Any) -> None:
    streams = [await _open(vllm_model, **ENDLESS, draft_tokens=number % 5) for number in range(SLOTS)]
    waiting = asyncio.create_task(vllm_model.generate(text_input="a", max_tokens=1))
    done, _ = await asyncio.wait([waiting], timeout=1.0)
    assert not done  # every place is taken, for minutes
    for stream in streams:
        stream.cancel()
    async with asyncio.timeout(60):
        assert (await waiting).error is None


async def test_requests_beyond_the_waiting_room_are_refused(vllm_model: Any) -> None:
    streams = [await _open(vllm_model, **ENDLESS) for _ in range(SLOTS)]
    tasks = [asyncio.create_task(vllm_model.generate(text_input="a", max_tokens=1)) for _ in range(64 + 5)]
    refused, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert waiting
    for stream in streams:
        stream.cancel()
    errors = [answer.error for answer in await asyncio.gather(*tasks) if answer.error is not None]
    assert len(errors) >= len(refused) > 0
    assert all(error.startswith("overloaded: ") for error in errors)


async def test_streams_cancelled_at_any_moment_leave_the_server_well(vllm_model: Any) -> None:
    async def cancel_after(parts: int) -> None:
        stream = vllm_model.open(text_input="a", max_tokens=12, stream=True, temperature=1.0, draft_tokens=parts % 5)
        seen = 0
        async for _, error in stream:
            assert error is None
            seen += 1
            if seen == parts:
                stream.cancel()
                return

    for round_number in range(4):
        await asyncio.gather(*(cancel_after(1 + (number + round_number) % 12) for number in range(24)))
    assert (await vllm_model.generate(text_input="a", max_tokens=2)).error is None


async def test_running_streams_go_on_plainly_with_the_same_tokens(vllm_model: Any) -> None:
    request = {**ENDLESS, "max_tokens": 300, "draft_tokens": LONGEST}
    undisturbed = await vllm_model.generate(**request)
    parts: list[Any] = []
    stopped_at = 0
    async for result, error in vllm_model.open(**request):
        assert error is None
        parts += result.as_numpy("token_ids").tolist()
        if not stopped_at and len(parts) > 20:
            stopped_at = len(parts)
            await _control(vllm_model)
        if result.as_numpy("finish_reason")[0]:
            drafted = int(result.as_numpy("drafted")[0])
            break
    assert parts == undisturbed.token_ids
    assert 0 < drafted < undisturbed.last.drafted / 2, (stopped_at, drafted, undisturbed.last.drafted)
    assert (await vllm_model.generate(**request)).last.drafted == undisturbed.last.drafted


@pytest.mark.parametrize("draft_tokens", [0, LONGEST])
@pytest.mark.parametrize("stop", [[], ["over the phone", "reimbursed"], ["payment"]], ids=["free", "late", "stop"])
async def test_greedy_answer_goes_on_after_any_part(vllm_model: Any, draft_tokens: int, stop: list[str]) -> None:
    request = {**SUMMARY, **({"stop": stop} if stop else {})}
    whole = await vllm_model.generate(**request, stream=True, draft_tokens=draft_tokens)
    text, ids = "", []
    chosen = {0, *range(len(whole.parts) // 4, len(whole.parts), max(1, len(whole.parts) // 4)), len(whole.parts) - 2}
    for index, part in enumerate(whole.parts[:-1]):
        text, ids = text + part.text_output, ids + part.token_ids
        if index not in chosen:
            continue
        rest = await vllm_model.generate(**request, resume_ids=ids, draft_tokens=LONGEST - draft_tokens)
        assert rest.error is None
        assert (text + rest.text, ids + rest.token_ids) == (whole.text, whole.token_ids)
        assert rest.last.output_tokens == whole.last.output_tokens
        assert rest.last.finish_reason == whole.last.finish_reason


async def test_what_is_complete_cannot_be_resumed(vllm_model: Any) -> None:
    whole = await vllm_model.generate(messages=demo.ONE_LINE_STATUS, temperature=0.0, max_tokens=64)
    assert whole.last.finish_reason == "stop"
    again = await vllm_model.generate(messages=demo.ONE_LINE_STATUS, temperature=0.0, resume_ids=whole.token_ids)
    assert again.error == (
        "invalid_request: resume_ids already hold a stop string or EOS: there is nothing to continue"
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_stop_reaches_a_relayed_request_that_is_still_rendered(vllm_triton: Any, stream: bool) -> None:
    """On one stream, Triton hands the model its requests in order: the second overtakes the first one's rendering, if
    the machine does not stand still between the two. One that was not told drafts in every attempt."""
    body = {
        "model": "embedded",
        "messages": demo.CALL_SUMMARY,
        "temperature": 0,
        "max_tokens": 48,
        "vllm_xargs": {"slipstream_draft_length": LONGEST},
        **({"stream": True, "stream_options": {"include_usage": True}} if stream else {}),
    }
    asked = {"openai_request": list(json.dumps({"endpoint": "chat", "body": body}).encode())}
    assert await _drafted(vllm_triton, asked) > 0
    stopped = [await _drafted(vllm_triton, asked, {"stop_drafting": True})]
    while stopped[-1] and len(stopped) < 10:
        stopped.append(await _drafted(vllm_triton, asked, {"stop_drafting": True}))
    assert 0 in stopped
    assert await _drafted(vllm_triton, asked) > 0


async def _drafted(server: Any, *messages: dict[str, Any]) -> int:
    """How many tokens vLLM counts as drafted in the answer to the first of `messages`, sent on one stream."""

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for inputs in messages:
            yield {"model_name": "embedded", "inputs": [tensor(name, value) for name, value in inputs.items()]}

    data = b""
    async with grpc_client.InferenceServerClient(f"{server.ports.host}:{server.ports.grpc}") as client:
        async for result, error in client.stream_infer(requests()):
            assert error is None
            if (part := result.as_numpy("openai_response")) is not None:
                data += part.tobytes()
    [drafted] = re.findall(rb'"num_draft_tokens": ?(\d+)', data)
    return int(drafted)


async def test_control_message_is_answered_at_once_under_load(vllm_model: Any) -> None:
    streams = [await _open(vllm_model, **ENDLESS, draft_tokens=LONGEST) for _ in range(SLOTS)]
    started = time.perf_counter()
    await _control(vllm_model)
    assert time.perf_counter() - started < 5.0
    for stream in streams:
        stream.cancel()
