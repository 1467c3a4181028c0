"""Replicas that share outcomes through a Redis that works."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from slipstream_core.redis.outcome_stream import stream_key
from slipstream_gateway.request.observations import MemoryStore

from tests.gateway.stores.outcomes import observation
from tests.support.polling import soon
from tests.support.speed import SLOWNESS


async def test_three_replicas_with_default_timing_see_each_others_outcomes_within_two_seconds(
    redis_server: Any, replica: Any
) -> None:
    """The best of three turns: in a single one, a stall of the machine would count."""
    url = redis_server().url
    replicas = [replica(url, interval_s=0.25) for _ in range(3)]
    await soon(lambda: all(one.store.status().connected for one in replicas), "connected")
    took_s = []
    for turn in range(3):
        began_s = time.monotonic()
        for index, one in enumerate(replicas):
            for number in range(100 * turn, 100 * (turn + 1)):
                one.store.append(observation(1000 * index + number))
        wanted = 200 * (turn + 1)
        await soon(lambda wanted=wanted: all(len(one.seen) >= wanted for one in replicas), "others' outcomes")
        took_s.append(time.monotonic() - began_s)
    assert min(took_s) <= 2.0 * SLOWNESS
    everything = [1000 * index + number for index in range(3) for number in range(300)]
    for index, one in enumerate(replicas):
        assert sorted(one.numbers) == [number for number in everything if number // 1000 != index]
        assert all(seen == observation(seen.prompt_tokens) for seen in one.seen)


async def test_nothing_is_lost_and_each_origins_order_stays(redis_server: Any, replica: Any) -> None:
    url = redis_server().url
    writer, reader = replica(url), replica(url)
    for number in range(5_000):
        writer.store.append(observation(number))
        if not number % 50:
            await asyncio.sleep(0)
    await soon(lambda: len(reader.seen) >= 5_000, "all outcomes")
    assert reader.numbers == list(range(5_000))
    assert writer.seen == []
    status, read = writer.store.status(), reader.store.status()
    assert (status.stored, status.buffered, status.dropped) == (5_000, 0, 0)
    assert (read.received, read.missed, read.duplicates, read.skipped) == (5_000, 0, 0, 0)


async def test_new_gateway_starts_with_what_the_streams_hold(redis_server: Any, replica: Any) -> None:
    url = redis_server().url
    first = replica(url)
    for number in range(100):
        first.store.append(observation(number))
    await soon(lambda: first.store.status().stored == 100, "stored")
    await first.stop()
    restarted = replica(url)
    await soon(lambda: len(restarted.seen) >= 100, "what it saw before its restart")
    assert restarted.numbers == list(range(100))


async def test_stream_is_capped_and_leaves_by_itself(redis_server: Any, replica: Any) -> None:
    server = redis_server()
    one = replica(server.url, stream_entries=20)
    for number in range(3_200):
        one.store.append(observation(number))
    await soon(lambda: one.store.status().stored == 3_200, "stored")
    with server.client() as client:
        assert 20 <= client.xlen(stream_key("acme")) < 150
        assert all(client.ttl(key) > 0 for key in client.scan_iter())
    late = replica(server.url)
    await soon(lambda: 3_199 in late.numbers, "the newest outcome")
    assert late.numbers == list(range(3_200 - len(late.seen), 3_200))


async def test_reader_that_falls_behind_the_cap_counts_what_it_missed(
    redis_server: Any, replica: Any, proxy: Any
) -> None:
    server = redis_server()
    held, url = proxy(server.port)
    writer, reader = replica(server.url, stream_entries=5), replica(url)
    writer.store.append(observation(0))
    await soon(lambda: reader.numbers == [0], "the first outcome")
    held.hold()
    for number in range(1, 5_001):
        writer.store.append(observation(number))
    await soon(lambda: writer.store.status().stored == 5_001, "stored")
    held.release()
    await soon(lambda: 5_000 in reader.numbers, "the newest outcome")
    status = reader.store.status()
    assert status.missed > 0
    assert status.received + status.missed == 5_001
    assert len(set(reader.numbers)) == len(reader.numbers)


async def test_hundred_pairs_are_followed_and_kept_apart(redis_server: Any, replica: Any) -> None:
    url = redis_server().url
    pairs = tuple(f"pair-{index}" for index in range(100))
    writer, reader, other = replica(url, pairs=()), replica(url, pairs=pairs), replica(url, pairs=("pair-7",))
    for number in range(1_000):
        writer.store.append(observation(number, pair=pairs[number % 100]))
    await soon(lambda: len(reader.seen) >= 1_000 and len(other.seen) >= 10, "all pairs")
    assert sorted(reader.numbers) == list(range(1_000))
    assert all(seen.subject.pair == pairs[seen.prompt_tokens % 100] for seen in reader.seen)
    assert {seen.subject.pair for seen in other.seen} == {"pair-7"}


async def test_pairs_that_come_and_go_with_the_manifest_are_followed_once(redis_server: Any, replica: Any) -> None:
    url, pairs = redis_server().url, ["acme"]
    writer, reader = replica(url), replica(url)
    reader.store._pairs = lambda: pairs
    writer.store.append(observation(1))
    writer.store.append(observation(2, pair="new"))
    await soon(lambda: reader.numbers == [1], "the pair known from the start")
    pairs[:] = ["new"]
    await soon(lambda: reader.numbers == [1, 2], "the new pair")
    pairs[:] = ["acme", "new"]
    await soon(lambda: reader.store.status().duplicates == 1, "the first pair read again")
    assert reader.numbers == [1, 2]


async def test_foreign_entries_are_skipped_and_counted(redis_server: Any, replica: Any) -> None:
    server = redis_server()
    key = stream_key("acme")
    batch = {"v": "1", "o": "someone", "n": "1", "b": b"\x90"}
    with server.client() as client:
        for foreign in (
            {"hello": "world"},
            {**batch, "v": "2"},
            {**batch, "b": b"no msgpack"},
            {**batch, "b": b"\x91" * 60_000},
            {**batch, "b": b"x" * 2_000_000},
            {**batch, "n": "one"},
            {**batch, "n": "-3"},
            {**batch, "n": "9" * 5_000},
            {**batch, "o": "x" * 100_000},
            batch,
        ):
            client.xadd(key, foreign)
    reader, writer = replica(server.url), replica(server.url)
    writer.store.append(observation(1))
    writer.store.append(observation(2, pair="other"))
    await soon(lambda: reader.numbers == [1], "the outcome between them")
    with server.client() as client:
        await soon(lambda: client.xlen(stream_key("other")) == 1, "the other pair's stream")
        of_other_pair = client.xrange(stream_key("other"))[0][1]
        client.xadd(key, {**of_other_pair, b"o": b"someone"})
    await soon(lambda: reader.store.status().skipped == 11, "all foreign entries counted")
    assert reader.numbers == [1]


async def test_what_is_left_is_written_at_the_end(redis_server: Any, replica: Any) -> None:
    url = redis_server().url
    writer, reader = replica(url), replica(url)
    await soon(lambda: writer.store.status().connected, "connected")
    for number in range(2_000):
        writer.store.append(observation(number))
    await writer.stop()
    await soon(lambda: len(reader.seen) == 2_000, "what was appended just before the end")


async def test_outcome_that_cannot_be_written_holds_nothing_up(redis_server: Any, replica: Any) -> None:
    url = redis_server().url
    writer, reader = replica(url), replica(url)
    writer.store.append(observation(1, load=object()))
    await soon(lambda: writer.store.status().dropped == 1, "dropped")
    writer.store.append(observation(2))
    await soon(lambda: reader.numbers == [2], "the next one")


async def test_memory_store_delivers_nothing_and_ends_when_cancelled() -> None:
    store, seen = MemoryStore(), []
    task = asyncio.create_task(store.run(seen.append))
    store.append(observation(1))
    await asyncio.sleep(0)
    task.cancel()
    await soon(task.cancelled, "the end")
    await store.aclose()
    assert seen == []
    assert store.status().buffered == 0
