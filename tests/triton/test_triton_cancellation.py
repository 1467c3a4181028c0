"""The engine stops the work of a client that disconnects. A client that reads slowly delays no other client."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any

from tests.contract.engine_client import COMPLETION, Engine
from tests.triton.conftest import ENDLESS, SLOTS, Fill

TOKENS = 300  # seconds of work, of an answer that would go on for a minute
SHORT: dict[str, Any] = {"path": COMPLETION, "prompt": "a", "max_tokens": 1}


async def seconds_for(triton: Engine, **request: Any) -> float:
    started = time.perf_counter()
    await triton.ask(**request)
    return time.perf_counter() - started


async def test_cancelled_streams_free_their_slots(triton: Engine, fill_slots: Fill) -> None:
    running = await fill_slots(max_tokens=TOKENS)
    # One that has to wait for a slot, to see how long these answers would go on.
    untouched = await seconds_for(triton, **SHORT)
    await running.aclose()

    running = await fill_slots(max_tokens=TOKENS)
    waiting = asyncio.create_task(seconds_for(triton, **SHORT))
    await asyncio.sleep(0)
    await running.aclose()
    assert await waiting < untouched / 2


async def test_a_whole_answer_whose_client_leaves_frees_its_slot(triton: Engine) -> None:
    whole = [asyncio.create_task(triton.ask(**ENDLESS)) for _ in range(SLOTS)]
    done, _ = await asyncio.wait(whole, timeout=0.3)
    assert not done
    for task in whole:
        task.cancel()
    await asyncio.gather(*whole, return_exceptions=True)
    short = await seconds_for(triton, **SHORT)
    assert short < await seconds_for(triton, **{**ENDLESS, "max_tokens": TOKENS})


async def test_cancelled_while_waiting_never_runs(triton: Engine, fill_slots: Fill) -> None:
    async def first_part() -> None:
        async with triton.stream(**ENDLESS) as events:
            await anext(events)

    running = await fill_slots()
    queued = [asyncio.create_task(first_part()) for _ in range(SLOTS)]
    done, _ = await asyncio.wait(queued, timeout=0.3)
    assert not done
    for task in queued:
        task.cancel()
    await running.aclose()
    await asyncio.gather(*queued, return_exceptions=True)
    # First the short one: it would have to wait for those that run.
    short = await seconds_for(triton, **SHORT)
    assert short < await seconds_for(triton, **{**ENDLESS, "max_tokens": TOKENS})


async def test_many_streams_cancelled_at_any_moment_leave_triton_well(triton: Engine) -> None:
    """Triton must survive every order."""
    await triton.cancel_streams(COMPLETION, prompt="a")
    assert (await triton.ask(**SHORT)).ids


async def test_a_client_that_does_not_read_delays_nobody(triton: Engine) -> None:
    async with AsyncExitStack() as streams:
        for _ in range(SLOTS - 1):
            await streams.enter_async_context(triton.stream(**{**ENDLESS, "max_tokens": TOKENS}))
        assert len((await triton.streamed(COMPLETION, prompt="a", max_tokens=8, ignore_eos=True)).ids) == 8
