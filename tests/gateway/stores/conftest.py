"""Real Redis servers of the tests' own, with proxies that delay and cut what goes through them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from slipstream_core.observation import Observation
from slipstream_core.redis.redis_limits import RedisLimits
from slipstream_core.redis.redis_store import RedisStore

from tests.support.network import Network
from tests.support.polling import PATIENCE_S, soon
from tests.support.redis_server import RedisServer


class Replica:
    """A store that runs, and what it delivered."""

    def __init__(self, store: RedisStore) -> None:
        self.store = store
        self.seen: list[Observation] = []
        self._task = asyncio.create_task(store.run(self.seen.append))

    @property
    def numbers(self) -> list[int]:
        """What `observation` numbered."""
        return [observation.prompt_tokens for observation in self.seen]

    async def stop(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self.store.aclose()


@contextlib.asynccontextmanager
async def gateways(url: str, number: int, **options: Any) -> AsyncIterator[list[RedisLimits]]:
    """That many gateways' limits, each by a connection of its own."""
    found = [RedisLimits(url, **{"exchange_s": PATIENCE_S, **options}) for _ in range(number)]
    tasks = [asyncio.create_task(one.run()) for one in found]
    try:
        await soon(lambda: all(one.connected for one in found))
        yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(one.aclose() for one in found))


@pytest.fixture
def redis_server(
    tmp_path: Path, free_ports: Callable[[int], list[int]], exit_stack: contextlib.ExitStack
) -> Callable[..., RedisServer]:
    """Starts servers with options of redis-server; all are ended after the test."""

    def start(*options: str) -> RedisServer:
        [port] = free_ports(1)
        (folder := tmp_path / f"redis{port}").mkdir()
        server = RedisServer(folder, port, *options)
        exit_stack.callback(server.stop)
        return server

    return start


@pytest.fixture
async def replica(async_exit_stack: contextlib.AsyncExitStack) -> Callable[..., Replica]:
    """Starts stores that follow the pair `acme`, quicker than by default; all are stopped after the test."""

    def start(url: str, *, pairs: tuple[str, ...] = ("acme",), **options: Any) -> Replica:
        quick = {"interval_s": 0.05, "most_backoff_s": 0.2, **options}
        started = Replica(RedisStore(url, pairs=lambda: pairs, **quick))
        async_exit_stack.push_async_callback(started.stop)
        return started

    return start


@pytest.fixture
def proxy(exit_stack: contextlib.ExitStack) -> Callable[..., tuple[Network, str]]:
    """Starts networks before a Redis; all are stopped after the test."""

    def start(to_port: int, **options: Any) -> tuple[Network, str]:
        network = exit_stack.enter_context(Network(to_port, **options))
        return network, f"redis://127.0.0.1:{network.port}/0"

    return start
