"""Bad requests to the real Triton: a readable error each, and the model goes on serving."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from slipstream_engine.embedded import demo

WAITING_ROOM = 64
USER = [{"role": "user", "content": "hello"}]
BAD = [
    ({}, "expected exactly one of text_input, messages, input_ids, got none"),
    ({"text_input": "a", "messages": USER}, "got text_input, messages"),
    ({"text_input": b"\xff\xfe"}, "text_input is not valid UTF-8: invalid start byte at byte 0"),
    ({"messages": b"[{"}, "messages is not a JSON list"),
    ({"messages": b'{"role": "user"}'}, "messages is not a JSON list"),
    ({"messages": b"[" * 100_000}, "messages is not a JSON list"),
    ({"messages": []}, "messages is an empty list"),
    ({"messages": [{"role": "user"}]}, "messages is not a JSON list"),
    ({"messages": [{"role": "judge", "content": "a"}]}, "messages[0].role: expected one of system"),
    ({"messages": b'[{"role": "user", "content": "\\ud800"}]'}, "messages[0].content has a lone surrogate"),
    ({"input_ids": [1, -5]}, "input_ids[1]: a token id cannot be negative, got -5"),
    ({"input_ids": [2_000_000]}, "2000000"),
    ({"input_ids": []}, "input_ids holds no tokens"),
    ({"messages": USER, "resume_ids": [-1]}, "resume_ids[0]: a token id cannot be negative, got -1"),
    ({"messages": USER, "max_tokens": 0}, "max_tokens: expected 1 or more, got 0"),
    ({"messages": USER, "max_tokens": -7}, "max_tokens: expected 1 or more, got -7"),
    ({"messages": USER, "temperature": float("nan")}, "temperature: expected a finite number, got nan"),
    ({"messages": USER, "temperature": float("inf")}, "temperature: expected a finite number, got inf"),
    ({"messages": USER, "temperature": -0.5}, "temperature: expected 0 to 100, got -0.5"),
    ({"messages": USER, "top_p": 0.0}, "top_p: expected more than 0 and at most 1, got 0"),
    ({"messages": USER, "top_p": 1.5}, "top_p: expected more than 0 and at most 1, got 1.5"),
    ({"messages": USER, "top_k": -1}, "top_k: expected 0 or more, got -1"),
    ({"messages": USER, "draft_tokens": -1}, "draft_tokens: expected 0 or more, got -1"),
    ({"messages": USER, "stop": ["a", ""]}, "stop[1]: expected 1 to 1024 bytes, got 0"),
    ({"messages": USER, "stop": [b"\xc3"]}, "stop[0] is not valid UTF-8"),
    ({"messages": USER, "stop": ["x"] * 10_000}, "stop: at most 64 strings, got 10000"),
]


@pytest.mark.parametrize(("inputs", "message"), BAD, ids=[message for _, message in BAD])
async def test_bad_input_is_named(triton: Any, inputs: dict[str, Any], message: str) -> None:
    answer = await triton.generate(**inputs)
    assert answer.parts == []
    assert answer.error.startswith("invalid_request: ")
    assert message in answer.error


async def test_wrong_shape_is_refused_by_triton_itself(triton: Any) -> None:
    answer = await triton.generate(messages=USER, max_tokens=[1, 2])
    assert "unexpected shape for input 'max_tokens'" in answer.error


async def test_prompt_beyond_the_context_is_refused_with_both_numbers(triton: Any) -> None:
    answer = await triton.generate(input_ids=[5] * 60_000)
    assert answer.error.startswith("context_length_exceeded: ")
    assert "60000" in answer.error


async def test_word_of_a_megabyte_does_not_hold_up_others(triton: Any) -> None:
    huge = asyncio.create_task(triton.generate(text_input="x" * 1_000_000))
    small = await triton.generate(messages=USER, max_tokens=4)
    assert small.error is None
    answer = await huge
    assert answer.error.startswith("context_length_exceeded: ")


async def test_requests_beyond_the_waiting_room_are_refused_and_the_others_served(triton: Any, fill_slots: Any) -> None:
    running = await fill_slots()
    request = {"messages": demo.ONE_LINE_STATUS, "temperature": 0.0, "max_tokens": 2}
    tasks = [asyncio.create_task(triton.generate(**request)) for _ in range(WAITING_ROOM + 10)]
    refused, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert waiting
    for stream in running:
        stream.cancel()
    answers = await asyncio.gather(*tasks)
    errors = [answer.error for answer in answers if answer.error is not None]
    assert len(errors) >= len(refused) > 0
    assert all(error.startswith("overloaded: ") for error in errors)
    assert len(errors) <= 10
    assert (await triton.generate(**request)).error is None
