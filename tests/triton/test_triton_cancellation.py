"""The engine stops the work of a client that disconnects. A client that reads slowly delays no other client."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from tests.contract.engine_client import COMPLETION, Engine
from tests.triton.conftest import ENDLESS, SLOTS, Fill

SHORT: dict[str, Any] = {"path": COMPLETION, "prompt": "a", "max_tokens": 1}
SOON_S = 20  # an endless answer takes more than a minute if it is not cancelled


async def is_answered_soon(triton: Engine) -> None:
    async with asyncio.timeout(SOON_S):
        assert (await triton.ask(**SHORT)).ids


async def test_cancelled_streams_free_their_slots(triton: Engine, fill_slots: Fill) -> None:
    running = await fill_slots()
    waiting = asyncio.create_task(is_answered_soon(triton))
    done, _ = await asyncio.wait([waiting], timeout=0.3)
    assert not done
    await running.aclose()
    await waiting


async def test_a_whole_answer_whose_client_leaves_frees_its_slot(triton: Engine) -> None:
    whole = [asyncio.create_task(triton.ask(**ENDLESS)) for _ in range(SLOTS)]
    done, _ = await asyncio.wait(whole, timeout=0.3)
    assert not done
    for task in whole:
        task.cancel()
    await asyncio.gather(*whole, return_exceptions=True)
    await is_answered_soon(triton)


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
    await is_answered_soon(triton)  # it would have to wait for those that run


async def test_many_streams_cancelled_at_any_moment_leave_triton_well(triton: Engine) -> None:
    """Triton must survive every order."""
    await triton.cancel_streams(COMPLETION, prompt="a")
    assert (await triton.ask(**SHORT)).ids


async def test_a_client_that_does_not_read_delays_nobody(triton: Engine) -> None:
    async with AsyncExitStack() as streams:
        for _ in range(SLOTS - 1):
            await streams.enter_async_context(triton.stream(**ENDLESS))
        assert len((await triton.streamed(COMPLETION, prompt="a", max_tokens=8, ignore_eos=True)).ids) == 8
