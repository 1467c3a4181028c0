"""Places in flight: never more than the limit, none lost, first come first served."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream_gateway.director.admission import Admission
from slipstream_gateway.errors import Overloaded


async def take(admission: Admission) -> None:
    if not admission.try_enter():
        await admission.enter()


async def test_waiters_get_places_in_order_and_the_queue_is_bounded() -> None:
    admission = Admission(max_in_flight=1, max_queued=2, queue_timeout_s=30)
    await take(admission)
    order: list[int] = []

    async def wait(name: int) -> None:
        await take(admission)
        order.append(name)
        admission.leave()

    tasks = [asyncio.create_task(wait(name)) for name in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await take(admission)
    admission.leave()
    await asyncio.gather(*tasks)
    assert order == [0, 1]
    assert admission.in_flight == 0


@given(seed=st.integers(0, 2**32), limit=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_no_place_is_lost_or_given_twice_whatever_is_cancelled(seed: int, limit: int) -> None:
    chance = random.Random(seed)

    async def run() -> None:
        admission = Admission(max_in_flight=limit, max_queued=4, queue_timeout_s=0.01)
        running = 0

        async def work() -> None:
            nonlocal running
            await take(admission)
            running += 1
            assert running <= limit
            try:
                for _ in range(chance.randrange(4)):
                    await asyncio.sleep(0)
            finally:
                running -= 1
                admission.leave()

        tasks = []
        for _ in range(20):
            tasks.append(asyncio.create_task(work()))
            if chance.random() < 0.5:
                await asyncio.sleep(0)
            if chance.random() < 0.3:
                chance.choice(tasks).cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        unexpected = [r for r in results if r is not None and not isinstance(r, Overloaded | asyncio.CancelledError)]
        assert unexpected == []
        assert admission.in_flight == 0

    asyncio.run(run())
