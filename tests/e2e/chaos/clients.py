"""Clients that read too slowly, and clients that go away: memory stays flat, and nobody decodes for nobody."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import uvloop

from tests.benchmarks.harness import percentile
from tests.e2e.chaos.asks import Ask, chat, mixed
from tests.e2e.chaos.memory import Engine, quiet_since_s, rss_mb
from tests.e2e.chaos.processes import Gateway
from tests.e2e.chaos.table import Reading
from tests.e2e.chaos.world import Scale, World
from tests.support.polling import eventually

GOAL_MB = 10.0
CANCEL_GOAL_S = 0.2
VANISHING_AT_ONCE = 50
WARM_UP_SHARE = 4
READ_BYTES_PER_S = 1
_SMALL_BUFFER = 4_096
_SETTLE_S = 5.0
_WAIT_S = 120.0  # hundreds of connections on a busy machine
_SEED = 77
_WORDS, _KILOBYTES = 2_000, 1  # a stream of 2 MB, more than all buffers on the way hold


def slow_readers(world: World, scale: Scale) -> Iterator[Reading]:
    """Each reads one byte a second of a stream that its server would send at once. A first round warms the gateway up,
    and what it holds for a client counts from when the buffers on the way are full."""
    gateway = world.new_gateway("slow-readers")
    gateway.start()
    try:
        uvloop.run(_read_slowly(gateway.port, scale.slow_readers, _SETTLE_S, lambda: None))
        eventually(lambda: world.paced.state().active == 0, "the first round's streams end")
        before_mb = rss_mb(gateway.pid)
        seen_mb: list[float] = []
        begun, cut = uvloop.run(
            _read_slowly(
                gateway.port, scale.slow_readers, scale.slow_read_s, lambda: seen_mb.append(rss_mb(gateway.pid))
            )
        )
        eventually(lambda: world.paced.state().active == 0, "their streams end")
        after_mb = rss_mb(gateway.pid)
    finally:
        gateway.stop()
    settled_mb = seen_mb[int(_SETTLE_S) :]
    grown_mb, kept_mb = max(settled_mb) - settled_mb[0], after_mb - before_mb
    yield Reading(
        fault=f"slow readers (1 B/s) × {scale.slow_readers}",
        goal=f"memory flat (± {GOAL_MB:g} MB)",
        measured=(
            f"{begun} streams, {scale.slow_read_s:g} s: {grown_mb:+.1f} MB while they read, {kept_mb:+.1f} MB after "
            f"them; {1e3 * (settled_mb[0] - before_mb) / max(begun, 1):.0f} kB more each; {cut} cut off"
        ),
        passed=grown_mb <= GOAL_MB and kept_mb <= GOAL_MB and begun == scale.slow_readers,
        figures={"before_mb": before_mb, "seen_mb": seen_mb, "after_mb": after_mb, "cut": cut},
    )


def vanishing(world: World, scale: Scale) -> Iterator[Reading]:
    """Clients leave at any moment of a stream, by FIN or by RST; then one at a time before the engine itself."""
    gateway = world.new_gateway("vanishing")
    gateway.start()
    try:
        yield _vanish_often(world, gateway, scale.vanishing)
        yield _vanish_from_engine(world, gateway, scale.vanishing_engine)
    finally:
        gateway.stop()


def _vanish_often(world: World, gateway: Gateway, count: int) -> Reading:
    uvloop.run(_vanish(gateway.port, count // WARM_UP_SHARE))
    eventually(lambda: world.paced.state().active == 0, "the warm-up's streams end")
    before_mb = rss_mb(gateway.pid)
    uvloop.run(_vanish(gateway.port, count))
    left_s = time.monotonic()
    eventually(lambda: world.paced.state().active == 0, "the upstream's work ends")
    free_s = time.monotonic() - left_s
    grown_mb = rss_mb(gateway.pid) - before_mb
    return Reading(
        fault=f"clients vanishing × {count}",
        goal=f"memory flat (± {GOAL_MB:g} MB)",
        measured=f"{grown_mb:+.1f} MB; the upstream is free {1e3 * free_s:.0f} ms after the last",
        passed=abs(grown_mb) <= GOAL_MB,
        figures={"before_mb": before_mb, "grown_mb": grown_mb, "free_s": free_s},
    )


def _vanish_from_engine(world: World, gateway: Gateway, count: int) -> Reading:
    engines = [Engine(replica.pid) for replica in world.replicas]
    long = next(ask for ask in mixed(1) if ask.streams)
    asked = chat("long", long.body["messages"][0]["content"], long.headers, temperature=0, max_tokens=400, stream=True)
    took_s = [_cancel_time_s(gateway.port, asked, engines) for _ in range(count)]
    p99_s = percentile(took_s, 0.99)
    return Reading(
        fault=f"  engine freed × {count}",
        goal=f"engine work cancelled ≤ {1e3 * CANCEL_GOAL_S:g} ms",
        measured=f"p50 {1e3 * percentile(took_s, 0.5):.0f} ms, p99 {1e3 * p99_s:.0f} ms (CPU time of the engine)",
        passed=p99_s <= CANCEL_GOAL_S,
        figures={"took_s": took_s},
    )


def _cancel_time_s(port: int, asked: Ask, engines: list[Engine]) -> float:
    """From the client's reset until the engines compute nothing any more."""
    quiet_since_s(engines, limit_s=_WAIT_S)
    with socket.create_connection(("127.0.0.1", port), timeout=_WAIT_S) as client:
        client.sendall(_request(asked))
        received = b""
        while received.count(b"data:") < 3:
            data = client.recv(65_536)
            if not data:
                raise AssertionError(f"the stream ended before its client left: {received[:200]!r}")
            received += data
        _reset_on_close(client)
    left_s = time.monotonic()
    return max(0.0, quiet_since_s(engines, limit_s=_WAIT_S) - left_s)


async def _read_slowly(port: int, count: int, seconds: float, look: Callable[[], None]) -> tuple[int, int]:
    """`look` is called when all have their first byte, and every second after it. How many streams began, and how many
    of them the gateway ended."""
    asked = _paced(words=_WORDS, gap_ms=0, kilobytes=_KILOBYTES)
    loop = asyncio.get_running_loop()
    clients = [_slow_socket() for _ in range(count)]
    try:
        async with asyncio.timeout(_WAIT_S):
            for client in clients:
                await loop.sock_connect(client, ("127.0.0.1", port))
                await loop.sock_sendall(client, _request(asked))
            first = await asyncio.gather(*(loop.sock_recv(client, 1) for client in clients))
        ended: set[int] = set()
        for second in range(int(seconds) + 1):
            look()
            at_s = loop.time() + 1.0
            for index, client in enumerate(clients):
                if index not in ended and not await _one_byte(loop, client):
                    ended.add(index)
            if second < int(seconds):
                await asyncio.sleep(max(0.0, at_s - loop.time()))
        return sum(map(bool, first)), len(ended)
    finally:
        for client in clients:
            client.close()


async def _one_byte(loop: asyncio.AbstractEventLoop, client: socket.socket) -> bool:
    """Whether the stream goes on."""
    try:
        async with asyncio.timeout(_WAIT_S):
            return bool(await loop.sock_recv(client, READ_BYTES_PER_S))
    except OSError:
        return False


async def _vanish(port: int, count: int) -> None:
    room, rng = asyncio.Semaphore(VANISHING_AT_ONCE), random.Random(_SEED)
    request = _request(_paced(words=1_000, gap_ms=20, kilobytes=0))

    async def one(chunks: int, reset: bool) -> None:
        async with room, asyncio.timeout(_WAIT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            with suppress(OSError, asyncio.IncompleteReadError):
                for _ in range(chunks):
                    await reader.readuntil(b"\n\n")
            if reset:
                _reset_on_close(writer.get_extra_info("socket"))
            writer.close()

    await asyncio.gather(*(one(rng.randrange(4), rng.random() < 0.5) for _ in range(count)))


def _slow_socket() -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER)
    client.setblocking(False)
    return client


def _reset_on_close(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _paced(*, words: int, gap_ms: int, kilobytes: int) -> Ask:
    return chat("paced", "x", {}, model="paced", max_tokens=words, seed=gap_ms, top_k=kilobytes, stream=True)


def _request(ask: Ask) -> bytes:
    body = json.dumps(ask.body).encode()
    fields = {"host": "localhost", "content-length": str(len(body)), **ask.headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {ask.path} HTTP/1.1\r\n{head}\r\n".encode() + body
