"""Bad requests to the real Triton: a readable error each, and the model goes on serving."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from slipstream_engine.embedded import demo

from tests.support.triton_bad_inputs import BAD, USER

WAITING_ROOM = 64


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
