"""Calls that run at the same time, of which one fails, or whose caller is cancelled."""

from __future__ import annotations

import asyncio

import pytest
from slipstream_gateway.conformance.all_of import all_of


class _Calls:
    """`fail` fails when `go` is set; `wait` would last for ever."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.ended = 0

    async def fail(self) -> None:
        await self.go.wait()
        raise ValueError("refused")

    async def wait(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.ended += 1


async def test_results_are_in_the_order_of_the_calls() -> None:
    async def value(number: int) -> int:
        await asyncio.sleep(0.01 * (3 - number))
        return number

    assert await all_of([value(number) for number in range(3)]) == [0, 1, 2]
    assert await all_of([]) == []


async def test_the_first_error_ends_the_other_calls() -> None:
    calls = _Calls()
    calls.go.set()
    with pytest.raises(ValueError, match="refused"):
        await all_of([calls.wait(), calls.fail(), calls.wait()])
    assert calls.ended == 2


@pytest.mark.parametrize("turns", range(3))
async def test_a_cancellation_is_not_lost_when_a_call_fails_at_the_same_time(turns: int) -> None:
    calls = _Calls()
    task = asyncio.create_task(all_of([calls.fail(), calls.wait()]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    calls.go.set()
    for _ in range(turns):  # from before the call has failed until its error is known
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert calls.ended == 1
