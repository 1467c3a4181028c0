"""Deadlines: ours become timeouts, other cancellations stay what they are."""

from __future__ import annotations

import asyncio

import pytest
import uvloop
from slipstream_core.errors import ClientTimeout, UpstreamTimeout
from slipstream_gateway.request.deadlines import CallTimer, client_late


async def test_long_wait_becomes_a_timeout_that_says_for_what() -> None:
    timer = CallTimer(total_s=60)
    with (
        pytest.raises(UpstreamTimeout, match=r"0\.05 s for the first chunk"),
        timer.waiting(0.05, "the first chunk"),
    ):
        await asyncio.sleep(30)
    with timer.waiting(30, "the next chunk"):  # usable again, and the task is not cancelled
        await asyncio.sleep(0)
    timer.close()


async def test_a_wait_for_the_client_blames_the_client() -> None:
    timer = CallTimer(total_s=60)
    with pytest.raises(ClientTimeout, match="client"), timer.waiting(0.05, "a chunk", client_late):
        await asyncio.sleep(30)
    timer.close()


async def test_total_ends_short_waits_too() -> None:
    timer = CallTimer(total_s=0.2)

    async def wait_again_and_again() -> None:
        while True:
            with timer.waiting(10, "the next chunk"):
                await asyncio.sleep(0.03)

    with pytest.raises(UpstreamTimeout):
        await wait_again_and_again()


async def test_time_outside_of_a_wait_does_not_count() -> None:
    timer = CallTimer(total_s=60)
    for _ in range(2):
        with timer.waiting(1.0, "the next chunk"):
            await asyncio.sleep(0)
        await asyncio.sleep(1.1)  # a slow reader, say
    timer.close()


async def test_cancellation_from_outside_stays_a_cancellation() -> None:
    async def wait() -> None:
        timer = CallTimer(total_s=60)
        with timer.waiting(30, "the next chunk"):
            await asyncio.sleep(30)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_deadline_within_the_same_millisecond_is_one_to_uvloop_too() -> None:
    async def wait_twice() -> None:
        timer = CallTimer(total_s=0.0001)
        with timer.waiting(10, "the first chunk"):
            pass
        with timer.waiting(10, "the next chunk"):
            await asyncio.sleep(30)

    with pytest.raises(UpstreamTimeout, match="the next chunk"):
        uvloop.run(wait_twice())
