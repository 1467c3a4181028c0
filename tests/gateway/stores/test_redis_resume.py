"""A consumer that keeps its place: after a restart it goes on exactly there, whatever Redis does meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
from typing import Any

import pytest
from slipstream_core.observation import Observation
from slipstream_core.redis.inbox import Inbox, Position, is_before
from slipstream_core.redis.outcome_stream import encode, stream_key
from slipstream_core.redis.redis_store import RedisStore

from tests.gateway.stores.outcomes import observation
from tests.support.polling import soon


class Consumer:
    """A store that only reads. `kept` is what its owner would have written down: counts and place, at one moment."""

    def __init__(self, url: str, kept: tuple[list[int], Position | None] = ([], None), **options: Any) -> None:
        self.numbers = list(kept[0])
        self.place = kept[1]
        self.stop_after: int | None = None
        self.store = RedisStore(url, pairs=lambda: ("acme",), interval_s=0.01, most_backoff_s=0.1, **options)
        if self.place is not None:
            self.store.resume("acme", self.place)
        self._task = asyncio.create_task(self.store.run(self._apply, self._passed))

    def kept(self) -> tuple[list[int], Position | None]:
        return list(self.numbers), self.place

    def _apply(self, seen: Observation) -> None:
        self.numbers.append(seen.prompt_tokens)

    def _passed(self, pair: str, position: Position) -> None:
        assert pair == "acme"
        self.place = position

    async def stop(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self.store.aclose()


async def test_restarts_at_any_moment_lose_nothing_and_count_nothing_twice(redis_server: Any, replica: Any) -> None:
    url, draw = redis_server().url, random.Random(3)
    writers = [replica(url, stream_entries=10_000) for _ in range(3)]
    consumer, sent = Consumer(url), 0
    for _ in range(25):
        for _ in range(draw.randrange(1, 120)):
            draw.choice(writers).store.append(observation(sent))
            sent += 1
        await asyncio.sleep(draw.random() * 0.1)
        kept = consumer.kept()
        await asyncio.sleep(draw.random() * 0.05)  # what it reads from here on is lost with it
        await consumer.stop()
        consumer = Consumer(url, kept)
    await soon(lambda: len(consumer.numbers) >= sent, "everything")
    assert sorted(consumer.numbers) == list(range(sent))
    await consumer.stop()


async def test_what_was_stored_while_nobody_read_is_read_once(redis_server: Any, replica: Any) -> None:
    url = redis_server().url
    writer, consumer = replica(url), Consumer(url)
    writer.store.append(observation(1))
    await soon(lambda: consumer.numbers == [1], "the first")
    await consumer.stop()
    for number in range(2, 3_000):
        writer.store.append(observation(number))
    await soon(lambda: writer.store.status().buffered == 0, "stored")
    consumer = Consumer(url, consumer.kept())
    await soon(lambda: len(consumer.numbers) >= 2_999, "the rest")
    assert consumer.numbers == list(range(1, 3_000))
    assert consumer.store.status().duplicates == 0
    await soon(lambda: consumer.store.is_read("acme"), "that nothing is left")
    await consumer.stop()


async def test_redis_that_was_emptied_is_read_on_and_what_it_lost_is_counted(redis_server: Any, replica: Any) -> None:
    server = redis_server()
    writer, consumer = replica(server.url), Consumer(server.url)
    for number in range(32):
        writer.store.append(observation(number))
    await soon(lambda: len(consumer.numbers) == 32, "the first")
    await consumer.stop()
    for number in range(32, 64):
        writer.store.append(observation(number))
    await soon(lambda: writer.store.status().buffered == 0, "stored, and never read")
    with server.client() as client:
        client.delete(stream_key("acme"))
    consumer = Consumer(server.url, consumer.kept())
    writer.store.append(observation(64))
    await soon(lambda: 64 in consumer.numbers, "what came after")
    assert consumer.numbers == [*range(32), 64]
    assert consumer.store.status().missed == 32
    await consumer.stop()


async def test_redis_restored_from_an_older_state_costs_no_double_count_and_shows(
    redis_server: Any, replica: Any
) -> None:
    server = redis_server()
    writer, consumer = replica(server.url), Consumer(server.url)
    for number in range(32):
        writer.store.append(observation(number))
    await soon(lambda: len(consumer.numbers) == 32, "the first")
    with server.client() as client:
        client.save()
    shutil.copy(server.folder / "dump.rdb", server.folder / "older.rdb")
    for number in range(32, 48):
        writer.store.append(observation(number))
    await soon(lambda: len(consumer.numbers) == 48, "what the older state does not have")
    await consumer.stop()
    server.kill()
    shutil.move(server.folder / "older.rdb", server.folder / "dump.rdb")
    server.start()
    with server.client() as client:
        [entry] = client.xrevrange(stream_key("acme"), count=1)
        milliseconds, _, _ = entry[0].partition(b"-")
        # A clock that was set back with it: new entries come before the place that was read.
        client.xadd(stream_key("acme"), {"v": "x"}, id=f"{int(milliseconds)}-999")
    consumer = Consumer(server.url, consumer.kept())
    await soon(lambda: consumer.store.status().skipped == 1, "read from the beginning")
    assert consumer.store.status().rewound == 1
    writer.store.append(observation(48))
    await soon(lambda: 48 in consumer.numbers, "what came after")
    assert consumer.numbers == list(range(49))
    await consumer.stop()


async def test_going_back_while_following_reads_again_from_there(redis_server: Any, replica: Any) -> None:
    url = redis_server().url
    writer, consumer = replica(url), Consumer(url)
    writer.store.append(observation(1))
    await soon(lambda: consumer.numbers == [1], "the first")
    place = consumer.place
    assert place is not None
    writer.store.append(observation(2))
    await soon(lambda: consumer.numbers == [1, 2], "the second")
    consumer.store.resume("acme", place)
    assert not consumer.store.is_read("acme")
    await soon(lambda: consumer.numbers == [1, 2, 2], "the second once more")
    consumer.store.resume("acme", Position(entry="0-0", numbers={}))
    await soon(lambda: consumer.numbers == [1, 2, 2, 1, 2], "everything once more")
    await consumer.stop()


async def test_state_is_whole_whenever_the_event_loop_has_its_turn(redis_server: Any, replica: Any) -> None:
    url = redis_server().url
    writer = replica(url)
    for number in range(4_000):
        writer.store.append(observation(number))
    await soon(lambda: writer.store.status().buffered == 0, "stored")
    consumer, looks = Consumer(url), 0
    while len(consumer.numbers) < 4_000:
        applied, place = consumer.kept()
        assert len(applied) == sum(place.numbers.values() if place else ())
        looks += 1
        await asyncio.sleep(0)
    assert looks > 1
    await consumer.stop()


def test_numbers_of_gateways_that_are_long_gone_leave_a_position_first() -> None:
    inbox = Inbox()
    inbox.positions(["acme"])
    frame = encode([observation(1)], first=1)
    assert frame is not None
    for origin in range(200):
        assert inbox.open("acme", b"%d" % origin, b"1", frame.payload)
    assert list(inbox.position("acme").numbers) == [str(origin) for origin in range(72, 200)]


@pytest.mark.parametrize(
    ("entry", "other", "before"),
    [(b"9-0", b"10-0", True), (b"10-1", b"10-2", True), (b"10-2", b"10-2", False), (b"x", b"10-2", False)],
)
def test_entries_are_ordered_as_redis_orders_them(entry: bytes, other: bytes, before: bool) -> None:
    assert is_before(entry, other) is before
