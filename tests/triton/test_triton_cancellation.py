"""A client that goes away takes its work with it: the engine's slots are free again."""

from __future__ import annotations

import asyncio
import time
from typing import Any

SLOTS = 8
TOKENS = 300  # seconds of work, of an answer that would go on for a minute


async def _first_part(stream: Any) -> None:
    async for _, error in stream:
        assert error is None
        return


async def _seconds_for(triton: Any, **inputs: Any) -> float:
    started = time.perf_counter()
    answer = await triton.generate(**inputs)
    assert answer.error is None
    return time.perf_counter() - started


async def test_cancelled_streams_free_their_slots(triton: Any, fill_slots: Any) -> None:
    streams = await fill_slots(max_tokens=TOKENS)
    # One that has to wait for a slot, to see how long these answers would go on.
    untouched = await _seconds_for(triton, text_input="a", max_tokens=1)
    for stream in streams:
        stream.cancel()

    streams = await fill_slots(max_tokens=TOKENS)
    waiting = asyncio.create_task(_seconds_for(triton, text_input="a", max_tokens=1))
    await asyncio.sleep(0)
    for stream in streams:
        stream.cancel()
    assert await waiting < untouched / 2


async def test_cancelled_while_waiting_never_runs(triton: Any, fill_slots: Any) -> None:
    streams = await fill_slots()
    queued = [triton.open(**triton.ENDLESS) for _ in range(SLOTS)]
    readers = [asyncio.create_task(_first_part(stream)) for stream in queued]
    _, pending = await asyncio.wait(readers, timeout=0.3)
    assert len(pending) == SLOTS
    for stream in (*queued, *streams):
        stream.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    # First the short one: it would have to wait for those that run.
    short = await _seconds_for(triton, text_input="a", max_tokens=1)
    assert short < await _seconds_for(triton, **(triton.ENDLESS | {"stream": False, "max_tokens": TOKENS}))


async def test_many_streams_cancelled_at_any_moment_leave_triton_well(triton: Any) -> None:
    """Cancelling races with the last response; Triton must survive every order."""

    async def cancel_after(parts: int) -> None:
        stream = triton.open(text_input="a", max_tokens=12, stream=True, temperature=1.0)
        seen = 0
        async for _, error in stream:
            assert error is None
            seen += 1
            if seen == parts:
                stream.cancel()
                return

    for round_number in range(4):
        await asyncio.gather(*(cancel_after(1 + (number + round_number) % 12) for number in range(24)))
    assert (await triton.generate(text_input="a", max_tokens=2)).error is None
