"""Places in flight: never more than the limit, none lost; who waits for one, and who is refused."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream_core.errors import DeadlineExceeded, Overloaded
from slipstream_core.settings import OverloadSettings
from slipstream_core.types import Caller, Priority
from slipstream_gateway.admission import Admission

from tests.support.clock import Clock

PAIR = "acme"


async def take(admission: Admission, pair: str = PAIR, **options: Any) -> None:
    if not admission.try_enter(pair):
        await admission.enter(pair, **options)


async def test_waiters_get_places_in_order_and_the_queue_is_bounded() -> None:
    admission = Admission(max_in_flight=1, max_queued=2, queue_timeout_s=30)
    await take(admission)
    order: list[int] = []

    async def wait(name: int) -> None:
        await take(admission)
        order.append(name)
        admission.leave(PAIR)

    tasks = [asyncio.create_task(wait(name)) for name in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await take(admission)
    admission.leave(PAIR)
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
                admission.leave(PAIR)

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


def caller(key_id: str, priority: Priority = Priority.NORMAL) -> Caller:
    return Caller(key_id=key_id, priority=priority)


async def queue_up(admission: Admission, who: list[tuple[str, Caller]]) -> tuple[list[str], list[asyncio.Task[None]]]:
    """Lets each of `who`, a name and its caller, wait for a place, in this order. The names that got one, in theirs."""
    served: list[str] = []

    async def wait(name: str, caller: Caller) -> None:
        await admission.enter(PAIR, caller)
        served.append(name)

    tasks = []
    for name, one in who:
        tasks.append(asyncio.create_task(wait(name, one)))
        await asyncio.sleep(0)
    return served, tasks


async def test_priorities_go_first_and_keys_take_turns() -> None:
    admission = Admission(max_in_flight=1, max_queued=10, queue_timeout_s=30)
    await take(admission)
    who = [("low", caller("d", Priority.LOW)), ("a1", caller("a")), ("a2", caller("a")), ("b1", caller("b"))]
    served, tasks = await queue_up(admission, [*who, ("high", caller("c", Priority.HIGH))])
    for _ in tasks:
        admission.leave(PAIR)
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert served == ["high", "a1", "b1", "a2", "low"]


async def test_a_full_queue_gives_way_to_who_waits_least() -> None:
    admission = Admission(max_in_flight=1, max_queued=3, queue_timeout_s=30)
    await take(admission)
    served, tasks = await queue_up(admission, [(f"flood{n}", caller("flood")) for n in range(3)])
    _, [quiet] = await queue_up(admission, [("quiet", caller("quiet"))])
    await asyncio.sleep(0)
    assert isinstance(tasks[2].exception(), Overloaded)
    with pytest.raises(Overloaded):
        await admission.enter(PAIR, caller("flood"))
    with pytest.raises(Overloaded):
        await admission.enter(PAIR, caller("other", Priority.LOW))
    for task in (*tasks[:2], quiet):
        task.cancel()
    await asyncio.gather(*tasks, quiet, return_exceptions=True)
    assert admission.queued == 0
    assert served == []


async def test_a_pair_at_its_limit_starves_no_other() -> None:
    overload = OverloadSettings(min_limit=1)
    admission = Admission(max_in_flight=4, max_queued=8, queue_timeout_s=30, overload=overload)
    for _ in range(4):
        await take(admission, "slow")
    for _ in range(4):  # its server has too much to do: the limit falls below the cap
        admission.leave("slow", refused=True)
    while admission.try_enter("slow"):
        pass
    assert admission.in_flight == 3
    waiting = asyncio.create_task(admission.enter("slow"))
    await asyncio.sleep(0)
    assert admission.try_enter("quick")
    admission.leave("quick")
    assert not waiting.done()
    admission.leave("slow")
    await waiting


async def test_retry_after_follows_the_rate_at_which_places_come_free() -> None:
    clock = Clock()
    admission = Admission(max_in_flight=1, max_queued=4, queue_timeout_s=10, clock=clock)
    for _ in range(100):  # two a second
        await take(admission)
        clock.now_s += 0.5
        admission.leave(PAIR)
    await take(admission)
    _, tasks = await queue_up(admission, [(str(n), caller("a")) for n in range(4)])
    with pytest.raises(Overloaded) as refused:
        await admission.enter(PAIR, caller("a"))
    assert refused.value.retry_after_s == pytest.approx(2.5, rel=0.15)
    with pytest.raises(Overloaded, match="after the request's deadline"):
        await admission.enter(PAIR, caller("a"), clock.now_s + 1.0)
    # Another key takes turns with them: it has one request before it, not four.
    another = asyncio.create_task(admission.enter(PAIR, caller("b"), clock.now_s + 1.2))
    await asyncio.sleep(0)
    assert not another.done()
    with pytest.raises(DeadlineExceeded):
        await admission.enter(PAIR, caller("b"), clock.now_s - 1.0)
    for task in (*tasks, another):
        task.cancel()
    await asyncio.gather(*tasks, another, return_exceptions=True)
    assert admission.snapshot()[0].refused == {"queue_full": 2, "cannot_make_it": 1, "deadline": 1}


async def test_pressure_is_how_full_the_pair_is_before_anybody_waits_and_all_there_is_while_somebody_does() -> None:
    admission = Admission(max_in_flight=4, max_queued=4, queue_timeout_s=30)
    assert admission.pressure(PAIR) == 0.0
    seen = []
    for _ in range(4):
        await take(admission)
        seen.append((admission.pressure(PAIR, inside=True), admission.pressure(PAIR)))
    assert seen == [(0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0)]  # who is in finds the others, a newcomer all
    waiting = asyncio.create_task(admission.enter(PAIR))
    await asyncio.sleep(0)
    assert admission.pressure(PAIR, inside=True) == 1.0
    assert admission.snapshot()[0].pressure == 1.0
    admission.leave(PAIR)
    await waiting
    assert admission.pressure(PAIR, inside=True) == 0.75


async def test_pressure_of_a_quiet_pair_is_that_of_the_worker_it_shares() -> None:
    admission = Admission(max_in_flight=4, max_queued=4, queue_timeout_s=30, overload=OverloadSettings(min_limit=1))
    await take(admission, "quiet")
    for _ in range(3):
        await take(admission, "busy")
    assert admission.pressure("quiet", inside=True) == 0.75


async def test_pressure_follows_a_limit_that_fell() -> None:
    admission = Admission(max_in_flight=8, max_queued=4, queue_timeout_s=30, overload=OverloadSettings(min_limit=1))
    for _ in range(5):
        await take(admission)
    before = admission.pressure(PAIR)
    admission.leave(PAIR, refused=True)  # the server has too much to do
    assert admission.snapshot()[0].limit == 4
    assert (before, admission.pressure(PAIR)) == (5 / 8, 1.0)


async def test_nobody_waits_beyond_a_deadline() -> None:
    admission = Admission(max_in_flight=1, max_queued=4, queue_timeout_s=30)
    await take(admission)
    with pytest.raises(DeadlineExceeded):
        await admission.enter(PAIR, caller("a"), time.monotonic() + 0.02)
    assert admission.queued == 0
