"""Whoever waits long asks for a sign of life: a server that is slow keeps its work, one that is halted loses it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, cast

import pytest
from slipstream_core.errors import UpstreamHalted, UpstreamUnavailable
from slipstream_gateway.request.deadlines import CallTimer
from slipstream_gateway.upstreams.base import Upstream
from slipstream_gateway.upstreams.pool import Pool, Replica

WITHIN_S = 0.1


class Server:
    """What answers probes, or does not."""

    def __init__(self, *, halted: bool = False) -> None:
        self.halted = halted
        self.probes = 0
        self.asked = asyncio.Semaphore(0)

    async def probe(self) -> None:
        self.probes += 1
        self.asked.release()
        if self.halted:
            await asyncio.Event().wait()


class Refusing(Server):
    async def probe(self) -> None:
        raise UpstreamUnavailable("gone")


def replica_of(server: Server) -> Replica:
    return Replica("r", cast(Upstream, cast(Any, server)))


async def wait_on(
    replica: Replica, answer: asyncio.Event, *, within_s: float = WITHIN_S, at_most_s: float | None = None
) -> None:
    timer = CallTimer(total_s=60.0)
    timer.probe(replica, within_s)
    try:
        async with asyncio.timeout(at_most_s):
            with timer.waiting(60.0, "the answer", probed=True):
                await answer.wait()
    finally:
        timer.close()


async def test_slow_server_that_answers_is_waited_for_however_long_it_takes() -> None:
    server, answer = Server(), asyncio.Event()
    replica = replica_of(server)
    waits = asyncio.gather(*(wait_on(replica, answer) for _ in range(20)))
    for _ in range(3):
        await server.asked.acquire()
    answer.set()
    await waits
    assert not any(replica.breaker(speculative=arm).is_open for arm in (False, True))


@pytest.mark.parametrize("server", [Server(halted=True), Refusing()])
async def test_server_without_a_sign_of_life_loses_all_that_waits_and_gets_nothing_new(server: Server) -> None:
    replica, other = replica_of(server), replica_of(Server())
    waits = await asyncio.gather(*(wait_on(replica, asyncio.Event()) for _ in range(20)), return_exceptions=True)
    assert all(isinstance(error, UpstreamHalted) for error in waits)
    assert server.probes <= 1  # one for all
    for speculative in (False, True):
        pool = Pool([replica, other], clock=time.monotonic, speculative=speculative)
        assert {pool.pick() for _ in range(4)} == {other}


async def test_server_that_was_silent_is_asked_at_once_and_forgiven_when_it_answers() -> None:
    server = Server(halted=True)
    replica = replica_of(server)
    with pytest.raises(UpstreamHalted):
        await wait_on(replica, asyncio.Event())
    assert replica.is_silent
    server.halted = False
    while replica.is_silent:  # what was just asked counts for a moment
        with contextlib.suppress(UpstreamHalted, TimeoutError):
            await wait_on(replica, asyncio.Event(), within_s=1.0, at_most_s=0.1)
    assert server.probes == 2


async def test_wait_after_wait_each_has_its_own_time_and_foreign_cancellations_stay() -> None:
    server = Server(halted=True)

    async def endless() -> None:
        timer = CallTimer(total_s=60.0)
        timer.probe(replica_of(server), 10.0)
        for _ in range(3):
            with timer.waiting(60.0, "the next chunk", probed=True):
                await asyncio.sleep(0)
        try:
            with timer.waiting(60.0, "the next chunk", probed=True):
                await asyncio.Event().wait()
        finally:
            timer.close()

    task = asyncio.create_task(endless())
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert server.probes == 0
