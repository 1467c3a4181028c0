"""The queue of objects: no key twice, none at the same time in two hands, failures later and later."""

from __future__ import annotations

import asyncio

import pytest
from slipstream_operator.handlers.work_queue import WorkQueue

TURN_S = 15.0


async def next_key(queue: WorkQueue[str]) -> str:
    async with asyncio.timeout(TURN_S):
        return await queue.get()


async def test_key_that_was_added_twice_comes_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in ("a", "b", "a"):
        queue.add(key)
    assert [await next_key(queue), await next_key(queue)] == ["a", "b"]
    assert len(queue) == 0


async def test_key_that_is_worked_on_comes_again_and_not_at_the_same_time() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    await next_key(queue)
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0
    queue.done("a")
    assert await next_key(queue) == "a"
    queue.done("a")
    assert len(queue) == 0
    assert queue.working == 0


async def test_waiting_workers_get_one_key_each() -> None:
    queue: WorkQueue[str] = WorkQueue()
    workers = [asyncio.create_task(next_key(queue)) for _ in range(3)]
    await asyncio.sleep(0)
    for key in "abc":
        queue.add(key)
    assert sorted(await asyncio.gather(*workers)) == ["a", "b", "c"]


async def test_cancelled_worker_loses_no_key() -> None:
    queue: WorkQueue[str] = WorkQueue()
    gone, staying = asyncio.create_task(queue.get()), asyncio.create_task(next_key(queue))
    await asyncio.sleep(0)
    queue.add("a")  # wakes the first worker, which is cancelled before it runs
    gone.cancel()
    assert await staying == "a"


async def test_failures_wait_longer_each_time_up_to_a_limit() -> None:
    queue: WorkQueue[str] = WorkQueue(first_retry_s=1.0, longest_retry_s=5.0)
    pauses = []
    for _ in range(5):
        queue.add("a")
        await next_key(queue)
        pauses.append(queue.failed("a"))
    assert [round(pause / wanted) for pause, wanted in zip(pauses, (1, 2, 4, 5, 5), strict=True)] == [1] * 5
    assert queue.failing == 1
    queue.add("a")
    await next_key(queue)
    queue.done("a")
    assert queue.failing == 0


async def test_failed_key_comes_back_by_itself_and_not_before_the_server_allows() -> None:
    queue: WorkQueue[str] = WorkQueue(first_retry_s=0.01)
    queue.add("a")
    await next_key(queue)
    assert queue.failed("a", retry_after_s=0.5) == pytest.approx(0.5)
    assert queue.add_due() == 0
    await asyncio.sleep(0.51)
    assert queue.add_due() == 1
    assert await next_key(queue) == "a"


async def test_news_cancel_an_appointment_and_a_new_appointment_replaces_the_old() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.schedule("a", 0.0)
    queue.add("a")
    queue.schedule("b", 0.0)
    queue.schedule("b", 60.0)
    assert queue.add_due() == 0
    assert len(queue) == 1


async def test_news_during_a_failing_attempt_are_looked_at_at_once() -> None:
    queue: WorkQueue[str] = WorkQueue(first_retry_s=60.0)
    queue.add("a")
    await next_key(queue)
    queue.add("a")
    queue.failed("a")
    assert await next_key(queue) == "a"


async def test_appointments_that_were_replaced_do_not_pile_up() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for seconds in range(10_000, 0, -1):
        queue.schedule("a", 3600.0 + seconds)
        queue.schedule("b", 0.0)
    assert len(queue._timeline) < 100
    assert queue.add_due() == 1
    assert await next_key(queue) == "b"
