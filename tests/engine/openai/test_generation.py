"""Chunks on their way from the engine's thread to the event loop."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from slipstream_engine.contract.protocol import OnChunk
from slipstream_engine.contract.types import Chunk, Counts, FinishReason, GenerationRequest
from slipstream_engine.openai import generation as module
from slipstream_engine.openai.generation import Generation
from slipstream_engine.openai.request.calls import Call

from tests.support.polling import PATIENCE_S

COUNTS = Counts(prompt_tokens=1, output_tokens=1)
PART = Chunk(request_id="a", text="x", token_ids=(1,), counts=COUNTS)
LAST = Chunk(request_id="a", text="", token_ids=(), counts=COUNTS, finish_reason=FinishReason.STOP)
CALL = Call(
    id="a",
    requests=(GenerationRequest(request_id="a", prompt_ids=(1,), max_tokens=1),),
    choices=1,
    is_chat=True,
    stream=True,
    include_usage=False,
    token_ids=False,
)


class Scripted:
    """An engine whose chunks the test sends."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []

    def submit(self, request: GenerationRequest, on_chunk: OnChunk, *, stops: int | None = None) -> None:
        self.send = on_chunk

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)


@contextmanager
def before_line(number: int, action: Callable[[], None]) -> Iterator[None]:
    """Run `action`, as another thread could, before line `number` of those that `Generation` executes from here on."""
    lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != module.__file__:
            return None
        if event == "line":
            lines += 1
            if lines == number:
                sys.settrace(None)
                action()
        return trace

    earlier = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(earlier)


@pytest.mark.parametrize("number", range(1, 13))
async def test_a_chunk_that_arrives_while_others_are_taken_hides_no_later_one(number: int) -> None:
    engine, found = Scripted(), []
    async with asyncio.timeout(PATIENCE_S), Generation(engine, CALL, stops=0) as generation:
        generation.submit()
        engine.send(PART)
        with before_line(number, lambda: engine.send(PART)):
            found += await generation.next()
        rest = asyncio.ensure_future(_rest(generation))
        for _ in range(5):  # it takes what there is, and waits
            await asyncio.sleep(0)
        engine.send(LAST)
        found += await rest
    assert [chunk.last for _, chunk in found].count(True) == 1
    assert found[-1] == (0, LAST)
    assert engine.cancelled == []


async def _rest(generation: Generation) -> list[tuple[int, Chunk]]:
    found = []
    while chunks := await generation.next():
        found += chunks
    return found


async def test_leaving_early_cancels_what_has_not_ended() -> None:
    engine = Scripted()
    async with Generation(engine, CALL, stops=0) as generation:
        generation.submit()
        engine.send(PART)
        assert await generation.next() == [(0, PART)]
    assert engine.cancelled == ["a"]
