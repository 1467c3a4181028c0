"""Redis gone, slow, full, read-only, emptied, set back: the store goes on, and no outcome is applied twice."""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from slipstream_core.redis.outbox import Outbox
from slipstream_core.redis.outcome_stream import BATCH, stream_key

from tests.gateway.stores.outcomes import observation
from tests.support.polling import soon


async def _append(store: Any, observations: list[Any], *, gap_s: float = 0.0) -> None:
    for one in observations:
        store.append(one)
        await asyncio.sleep(gap_s)


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    "options", [(), ("--appendonly", "yes", "--appendfsync", "always")], ids=["empty", "with-data"]
)
async def test_killed_and_restarted_redis_costs_no_outcome_that_was_still_here(
    options: tuple[str, ...], redis_server: Any, replica: Any
) -> None:
    server = redis_server(*options)
    writer, reader = replica(server.url), replica(server.url)
    writer.store.append(observation(0))
    await soon(lambda: reader.numbers == [0], "the outcome before")
    server.kill()
    await soon(lambda: not (writer.store.status().connected or reader.store.status().connected), "noticed")
    for number in range(1, 1_001):
        writer.store.append(observation(number))
    assert writer.store.status().buffered == 1_000
    server.start()
    await soon(lambda: len(reader.seen) >= 1_001, "the outcomes from meanwhile")
    assert reader.numbers == list(range(1_001))
    await soon(lambda: writer.store.status().buffered == 0, "all outcomes acknowledged")
    assert writer.store._backoff.failures == 0  # the next time it is away, waits start short again


async def test_every_outcome_is_applied_once_while_connections_are_cut_at_random(
    redis_server: Any, replica: Any, proxy: Any
) -> None:
    server, stores = redis_server(), []
    proxies = [proxy(server.port, cut_share=0.25, seed=seed) for seed in range(3)]
    quick = {"interval_s": 0.005, "most_backoff_s": 0.01, "buffer_outcomes": 10_000, "stream_entries": 20_000}
    stores = [replica(url, **quick) for _, url in proxies]
    mine = [[observation(10_000 * index + number) for number in range(3_400)] for index in range(3)]
    for start in range(0, 3_400, 20):
        for one, observations in zip(stores, mine, strict=True):
            for observed in observations[start : start + 20]:
                one.store.append(observed)
        await asyncio.sleep(0.005)
    await soon(lambda: all(len(one.seen) >= 6_800 for one in stores), "all outcomes", within_s=60.0)
    late = replica(server.url)
    await soon(lambda: len(late.seen) >= 10_200, "all outcomes, to one that came late", within_s=60.0)
    for index, one in enumerate(stores):
        others = [
            number for other in range(3) if other != index for number in range(10_000 * other, 10_000 * other + 3_400)
        ]
        assert sorted(one.numbers) == others
    assert sorted(late.numbers) == [10_000 * index + number for index in range(3) for number in range(3_400)]
    assert min(cutter.cuts for cutter, _ in proxies) > 10


async def test_stopped_redis_that_carries_everything_out_later_stores_nothing_twice(
    redis_server: Any, replica: Any
) -> None:
    server = redis_server()
    writer, reader = replica(server.url, deadline_s=0.2), replica(server.url, deadline_s=0.2)
    writer.store.append(observation(0))
    await soon(lambda: reader.numbers == [0], "the outcome before")
    server.pause()
    for number in range(1, 200):
        writer.store.append(observation(number))
    await soon(lambda: writer.store._backoff.failures >= 4, "several attempts, each left in the socket's buffer")
    for number in range(200, 400):
        writer.store.append(observation(number))
    server.resume()
    await soon(lambda: len(reader.seen) >= 400, "all outcomes")
    assert reader.numbers == list(range(400))
    await soon(lambda: writer.store.status().buffered == 0, "acknowledged")
    with server.client() as client:
        numbers = [int(fields[b"n"]) for _, fields in client.xrange(stream_key("acme"))]
    assert numbers == sorted(set(numbers))


async def test_appending_to_a_store_whose_redis_hangs_takes_microseconds(redis_server: Any, replica: Any) -> None:
    server = redis_server()
    one = replica(server.url, buffer_outcomes=1_000)
    await soon(lambda: one.store.status().connected, "connected")
    server.pause()
    observed = observation(1)
    loop, longest_s, used_s = asyncio.get_running_loop(), 0.0, []
    for _ in range(100):
        before_s, before_used_s = loop.time(), time.thread_time()
        for _ in range(100):
            one.store.append(observed)
        await asyncio.sleep(0)
        longest_s = max(longest_s, loop.time() - before_s)
        used_s.append(time.thread_time() - before_used_s)
    quickest = sorted(used_s)[:90]  # a machine that stood still meanwhile may count that as time used
    assert sum(quickest) < len(quickest) * 100 * 100e-6
    assert longest_s < 5  # to wait for Redis would take ten
    status = one.store.status()
    assert status.buffered <= 1_000
    assert status.dropped == 10_000 - status.buffered


async def test_slow_redis_delays_outcomes_and_nothing_else(redis_server: Any, replica: Any, proxy: Any) -> None:
    server = redis_server()
    slow, url = proxy(server.port)
    writer, reader = replica(url), replica(server.url)
    await soon(lambda: writer.store.status().connected, "connected")
    slow.delay_s = 1.0
    await _append(writer.store, [observation(number) for number in range(100)])
    await soon(lambda: reader.numbers == list(range(100)), "the outcomes")
    assert writer.store.status().connected
    await soon(lambda: writer.store.status().stored == 100, "the late acknowledgement")


async def test_full_redis_refuses_and_later_takes_everything(
    redis_server: Any, replica: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = redis_server("--maxmemory-policy", "noeviction")
    writer, reader = replica(server.url), replica(server.url)
    writer.store.append(observation(0))
    await soon(lambda: reader.numbers == [0], "the outcome before")
    with server.client() as client:
        client.config_set("maxmemory", "1")
        for number in range(1, 101):
            writer.store.append(observation(number))
        await soon(lambda: len(_warnings(caplog)) == 1, "one line")
        assert "OOM" in _warnings(caplog)[0]
        assert writer.store.status().connected
        await soon(lambda: writer.store._outbox._lanes["acme"].backoff.failures >= 2, "a second attempt")
        assert writer.store.status().buffered == 100
        client.config_set("maxmemory", "0")
    await soon(lambda: reader.numbers == list(range(101)), "the outcomes from meanwhile")
    assert len(_warnings(caplog)) == 1


async def test_read_only_replica_still_delivers(
    redis_server: Any, replica: Any, caplog: pytest.LogCaptureFixture
) -> None:
    main = redis_server("--repl-diskless-sync-delay", "0")
    copy = redis_server("--replicaof", "127.0.0.1", str(main.port))
    writer, on_copy = replica(main.url), replica(copy.url)
    on_copy.store.append(observation(1))
    writer.store.append(observation(2))
    await soon(lambda: on_copy.numbers == [2], "what the main one has")
    await soon(lambda: any("READONLY" in line for line in _warnings(caplog)), "the line")
    assert on_copy.store.status().buffered == 1
    with copy.client() as client:
        client.replicaof("NO", "ONE")
    await soon(lambda: on_copy.store.status().buffered == 0, "written after the failover")


async def test_wrong_type_at_one_key_holds_up_that_pair_alone(
    redis_server: Any, replica: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = redis_server()
    pairs = ("acme", "other")
    writer, reader = replica(server.url, pairs=pairs), replica(server.url, pairs=pairs)
    with server.client() as client:
        client.set(stream_key("acme"), "a string")
        for number in range(20):
            writer.store.append(observation(number))
            writer.store.append(observation(100 + number, pair="other"))
        await soon(lambda: reader.numbers == list(range(100, 120)), "the other pair")
        await soon(lambda: writer.store._outbox._lanes["acme"].backoff.failures >= 2, "a second attempt")
        lines = _warnings(caplog)
        assert len(lines) == 2  # one of each store
        assert all("WRONGTYPE" in line and "acme" in line for line in lines)
        client.delete(stream_key("acme"))
    await soon(lambda: len(reader.seen) == 40, "the pair itself")


async def test_password_is_used_and_never_shown(
    redis_server: Any, replica: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = redis_server("--requirepass", "sesame-17")
    without = replica(server.url)
    wrong = replica(server.url.replace("//", "//:open-18@"))
    right = replica(server.url.replace("//", "//:sesame-17@"))
    for number, one in enumerate((without, wrong, right)):
        one.store.append(observation(number))
    await soon(lambda: right.store.status().stored == 1, "written with the password")
    await soon(lambda: len(_warnings(caplog)) >= 2, "the lines of those without")
    assert all("refuses the credentials" in line for line in _warnings(caplog))
    assert not any(one.store.status().connected for one in (without, wrong))
    shown = caplog.text + repr([without.store, wrong.store, right.store]) + str(right.store.status())
    assert "sesame" not in shown
    assert "open-18" not in shown


async def test_flushed_redis_starts_over(redis_server: Any, replica: Any) -> None:
    server = redis_server()
    writer, reader = replica(server.url), replica(server.url)
    for round_ in range(3):
        for number in range(10):
            writer.store.append(observation(100 * round_ + number))
        await soon(lambda expected=10 * (round_ + 1): len(reader.seen) >= expected, "the outcomes of this round")
        with server.client() as client:
            client.flushall()
    assert sorted(reader.numbers) == [100 * round_ + number for round_ in range(3) for number in range(10)]


async def test_stream_with_older_ids_is_read_again_and_applied_once(redis_server: Any, replica: Any) -> None:
    server = redis_server()
    writer, reader = replica(server.url), replica(server.url)
    for number in range(10):
        writer.store.append(observation(number))
    await soon(lambda: len(reader.seen) == 10, "the first outcomes")
    with server.client() as client:  # as after a FLUSHALL by a clock that was set back an hour
        entries = client.xrange(stream_key("acme"))
        source = replica(server.url)
        source.store.append(observation(77, pair="other"))
        await soon(lambda: client.xlen(stream_key("other")) == 1, "a batch")
        new = {**client.xrange(stream_key("other"))[0][1], b"b": entries[0][1][b"b"]}
        client.delete(stream_key("acme"))
        for milliseconds, fields in enumerate((entries[0][1], new), 1):
            client.xadd(stream_key("acme"), fields, id=f"{milliseconds}-0")
    await soon(lambda: len(reader.seen) > 10, "the batch with an id in the past")
    first = len(reader.seen) - 10
    assert reader.numbers[10:] == reader.numbers[:first]  # by another origin, so not a duplicate
    assert reader.store.status().duplicates == 1


async def test_restored_snapshot_is_not_applied_again(tmp_path: Path, redis_server: Any, replica: Any) -> None:
    server = redis_server("--dbfilename", "dump.rdb")
    dump = server.folder / "dump.rdb"
    writer, reader = replica(server.url), replica(server.url)
    await _append(writer.store, [observation(number) for number in range(50)])
    await soon(lambda: len(reader.seen) == 50 and writer.store.status().buffered == 0, "before the snapshot")
    with server.client() as client:
        client.save()
    shutil.copy(dump, tmp_path / "old.rdb")
    await _append(writer.store, [observation(number) for number in range(50, 100)])
    await soon(lambda: len(reader.seen) == 100 and writer.store.status().buffered == 0, "after the snapshot")
    server.kill()
    shutil.copy(tmp_path / "old.rdb", dump)
    server.start()
    await _append(writer.store, [observation(number) for number in range(100, 150)])
    await soon(lambda: len(reader.seen) >= 150, "after the restore")
    assert reader.numbers == list(range(150))
    late = replica(server.url)
    await soon(lambda: len(late.seen) >= 100, "what Redis has")
    assert sorted(late.numbers) == [*range(50), *range(100, 150)]


async def test_redis_that_comes_and_goes_gets_one_line_for_each_way(
    redis_server: Any, replica: Any, proxy: Any, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO)
    settled_s = "slipstream_core.redis.condition._SETTLED_S"
    monkeypatch.setattr(settled_s, 10.0)  # longer than a stall of this machine, in which no cut is noticed either
    server = redis_server()
    flaky, url = proxy(server.port, cut_share=0.5, seed=random.Random(3).randrange(99))
    one = replica(url, most_backoff_s=0.02)
    await soon(lambda: flaky.cuts > 20, "many cuts")
    assert len(_warnings(caplog)) == 1
    flaky.cut_share = 0.0
    monkeypatch.setattr(settled_s, 0.0)
    await soon(lambda: "outcomes are shared through" in caplog.text, "the line that says that it works")
    assert len(caplog.records) == 2
    assert one.store.status().connected


async def test_what_redis_refuses_to_hand_out_does_not_count_as_read(redis_server: Any, replica: Any) -> None:
    server = redis_server()
    with server.client() as client:
        client.acl_setuser("reader", enabled=True, passwords=["+pw"], keys=["*"], commands=["+@all"])
        reader = replica(server.url.replace("redis://", "redis://reader:pw@"), pairs=("acme", "other"))
        await soon(lambda: reader.store.is_read("acme") and reader.store.is_read("other"), "all of nothing")
        client.set(stream_key("acme"), "no stream")
        await soon(lambda: not reader.store.is_read("acme"), "that one stream cannot be read")
        assert reader.store.is_read("other")
        client.delete(stream_key("acme"))
        await soon(lambda: reader.store.is_read("acme"), "read again")
        client.acl_setuser("reader", commands=["-eval"])
        await soon(lambda: not (reader.store.is_read("acme") or reader.store.is_read("other")), "nothing is read")
        client.acl_setuser("reader", commands=["+eval"])
        await soon(lambda: reader.store.is_read("acme"), "read again, once it is allowed")


def test_outcomes_that_were_refused_are_tried_with_a_single_batch() -> None:
    now_s = 0.0
    outbox = Outbox(limit=10 * BATCH, clock=lambda: now_s)
    for number in range(3 * BATCH):
        outbox.append(observation(number))

    def batches() -> list[int]:
        return [len(frames) for _, frames in outbox.due()]

    assert batches() == [3]
    outbox.stored("acme", 1, refused=True)
    assert batches() == []
    now_s = 60.0
    assert batches() == [1]
    outbox.stored("acme", 1, refused=False)
    assert batches() == [1]
    assert outbox.buffered == BATCH
