"""Real Redis servers of the tests' own; a proxy that delays and cuts what goes through it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from slipstream_core.observation import Observation, Subject
from slipstream_core.redis.redis_store import RedisStore
from slipstream_core.types import Arm, Reason

from tests.support.polling import soon
from tests.support.redis_server import RedisServer


class Proxy:
    """Between a store and Redis: replies come `delay_s` late, and with `cut` connections are cut at a random byte
    of what Redis answers, so that commands are carried out and nobody is told. Nothing passes while `open` is clear."""

    def __init__(self, to_port: int, *, delay_s: float = 0.0, cut: float = 0.0, seed: int = 0) -> None:
        self._to_port = to_port
        self.delay_s = delay_s
        self.cut = cut
        self.cuts = 0
        self.open = asyncio.Event()
        self.open.set()
        self._random = random.Random(seed)
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        return f"redis://127.0.0.1:{port}/0"

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
        back = asyncio.create_task(self._back(to_reader, writer))
        try:
            while data := await reader.read(65536):
                await self.open.wait()
                to_writer.write(data)
                await to_writer.drain()
        except ConnectionError:
            pass  # either side may go at any time
        finally:
            back.cancel()
            to_writer.close()
            writer.close()
            self._tasks.discard(task)

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                await asyncio.sleep(self.delay_s)
                await self.open.wait()
                if self._random.random() < self.cut:
                    self.cuts += 1
                    writer.write(data[: self._random.randrange(len(data))])
                    break
                writer.write(data)
                await writer.drain()
        writer.close()


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


@pytest.fixture
def redis_server(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> Iterator[Callable[..., RedisServer]]:
    """Starts servers with options of redis-server; all are ended after the test."""
    servers: list[RedisServer] = []

    def start(*options: str) -> RedisServer:
        folder = tmp_path / f"redis{len(servers)}"
        folder.mkdir()
        servers.append(RedisServer(folder, free_ports(1)[0], *options))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
async def replica() -> AsyncIterator[Callable[..., Replica]]:
    """Starts stores that follow the pair `acme`, quicker than by default; all are stopped after the test."""
    replicas: list[Replica] = []

    def start(url: str, *, pairs: tuple[str, ...] = ("acme",), **options: Any) -> Replica:
        quick = {"interval_s": 0.05, "most_backoff_s": 0.2, **options}
        replicas.append(Replica(RedisStore(url, pairs=lambda: pairs, **quick)))
        return replicas[-1]

    yield start
    await asyncio.gather(*(one.stop() for one in replicas))


@pytest.fixture
async def proxy() -> AsyncIterator[Callable[..., Awaitable[tuple[Proxy, str]]]]:
    """Starts proxies; all are stopped after the test."""
    proxies: list[Proxy] = []

    async def start(to_port: int, **options: Any) -> tuple[Proxy, str]:
        proxies.append(Proxy(to_port, **options))
        return proxies[-1], await proxies[-1].start()

    yield start
    await asyncio.gather(*(one.stop() for one in proxies))


@pytest.fixture(scope="session")
def observation() -> Callable[..., Observation]:
    """An outcome whose number stands in `prompt_tokens`."""

    def make(number: int, *, pair: str = "acme", **more: Any) -> Observation:
        subject = Subject(
            pair=pair,
            fingerprint="0123456789abcdef",
            source="fedcba9876543210",
            cold_class="summarization/long",
            temperature=0,
        )
        fields: dict[str, Any] = {
            "subject": subject,
            "request_class": "summarization/long",
            "arm": Arm.SPECULATIVE,
            "reason": Reason.SPECULATION_PAYS,
            "draft_length": 5,
            "pool": "http://127.0.0.1:8000",
            "status": "ok",
            "prompt_tokens": number,
            "output_tokens": 200,
            "drafted": 180,
            "accepted": 140,
            "rejections": 20,
            "steps": 60,
            "ttft_s": 0.03,
            "e2e_s": 1.33,
            "load": 3.2,
            "batch_draft_length": 3.3,
            "price_per_gpu_hour": 2.5,
            "time_s": 1.7e9,
        }
        return Observation(**{**fields, **more})

    return make


@pytest.fixture(scope="session")
def until() -> Callable[..., Awaitable[None]]:
    """Waits until a condition holds, and fails with `what` where it does not within `within_s`."""
    return soon
