"""Limits through a real Redis: several gateways at once, never more than the limit; and Redis that goes and comes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis
from slipstream_core.rate_limits import Charge, Grant, LimitName, Limits, Refusal, Use
from slipstream_core.redis import redis_limits
from slipstream_core.redis.limit_scripts import EPOCH_S, leases_key, limits_key
from slipstream_core.redis.limit_usage import RedisUsage
from slipstream_core.redis.redis_limits import RedisLimits

from tests.gateway.stores.conftest import gateways
from tests.support.polling import PATIENCE_S, soon
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, free_ports: Callable[[int], list[int]]) -> Iterator[RedisServer]:
    running = RedisServer(tmp_path_factory.mktemp("redis"), free_ports(1)[0])
    yield running
    running.stop()


# Which gateway, what it does, how many tokens, which request ends.
_Step = tuple[int, str, int, int]
steps = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["admit", "admit", "admit", "settle"]),
        st.integers(0, 300),
        st.integers(0, 9),
    ),
    min_size=5,
    max_size=60,
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=steps, rpm=st.integers(2, 30_000), tpm=st.integers(10, 300_000), most=st.integers(1, 6))
def test_gateways_together_never_grant_more_than_the_limits(
    server: RedisServer, script: list[_Step], rpm: int, tpm: int, most: int
) -> None:
    """Whatever they do in whatever order: GCRA's bound holds in every window, by the clock of Redis."""
    limits = Limits(requests_per_minute=rpm, tokens_per_minute=tpm, concurrent=most)
    with server.client() as redis:
        redis.flushall()
        granted = asyncio.run(_play(server.url, script, limits, redis))
    granted.sort()
    for start, (since_us, _, _) in enumerate(granted):
        tokens, until_us = 0, since_us
        for end in range(start, len(granted)):
            tokens += granted[end][2]
            until_us = max(until_us, granted[end][1])
            window_min = (until_us - since_us) / 60e6
            assert end - start + 1 <= rpm * (1 + window_min) + 1e-3
            assert tokens <= tpm * (1 + window_min) + 1e-3


async def _play(url: str, script: list[_Step], limits: Limits, redis: Redis) -> list[tuple[int, int, int]]:
    """Plays `script` with up to four steps at once. Of each grant: between which instants it was made, by the clock of
    Redis, and its tokens."""
    granted: list[tuple[int, int, int]] = []
    running: list[tuple[RedisLimits, Grant, Charge]] = []
    async with gateways(url, 3) as found:

        async def step(which: int, action: str, tokens: int, ends: int) -> None:
            if action == "settle":
                if running:
                    gateway, grant, charge = running.pop(ends % len(running))
                    gateway.settle(Use("key", limits, grant, charge, charge))
                return
            before_us = _now_us(redis)
            verdict = await found[which].admit("key", limits, Charge(tokens))
            assert verdict is not None
            if isinstance(verdict, Grant):
                running.append((found[which], verdict, Charge(tokens)))
                granted.append((before_us, _now_us(redis), tokens))

        for start in range(0, len(script), 4):
            await asyncio.gather(*(step(*one) for one in script[start : start + 4]))
            assert limits.concurrent is not None
            assert len(running) <= limits.concurrent
    return granted


def _now_us(redis: Redis) -> int:
    seconds, us = redis.time()
    return (int(seconds) - EPOCH_S) * 1_000_000 + int(us)


async def test_all_limits_take_one_round_trip_and_requests_at_once_share_it(server: RedisServer) -> None:
    limits = Limits(requests_per_minute=1000, tokens_per_minute=100_000, concurrent=100, usd_per_day=1.0)
    with server.client() as redis:
        async with gateways(server.url, 1) as (one,):
            redis.config_resetstat()
            assert isinstance(await one.admit("a", limits, Charge(10, 10)), Grant)
            assert redis.info("commandstats")["cmdstat_evalsha"]["calls"] == 1
            reads = int(redis.info("stats")["total_reads_processed"])
            verdicts = await asyncio.gather(*(one.admit("a", limits, Charge(10, 10)) for _ in range(50)))
            # The fifty came in one or two reads; the two others are those of INFO.
            assert int(redis.info("stats")["total_reads_processed"]) - reads <= 4
    assert all(isinstance(verdict, Grant) for verdict in verdicts)


async def test_a_request_without_a_budget_does_not_shorten_what_is_remembered_of_the_days(server: RedisServer) -> None:
    """As a question to `/v1/route` is: the day's money would be forgotten with the minute's requests."""
    async with gateways(server.url, 1) as (one,):
        assert isinstance(await one.admit("day", Limits(usd_per_day=1.0), Charge(0, 900_000_000)), Grant)
        assert isinstance(await one.admit("day", Limits(requests_per_minute=10), Charge()), Grant)
    with server.client() as redis:
        assert redis.ttl(limits_key("day")) > 86_400


async def test_refusal_names_the_limit_and_when(server: RedisServer) -> None:
    cases = (
        (Limits(requests_per_minute=1), Charge(), LimitName.REQUESTS, 60.0),
        (Limits(tokens_per_minute=10), Charge(10), LimitName.TOKENS, 60.0),
        (Limits(concurrent=1), Charge(), LimitName.CONCURRENT, 1.0),
        (Limits(usd_per_day=1.0), Charge(0, 600_000_000), LimitName.BUDGET, 86_400.0),
    )
    async with gateways(server.url, 2) as (one, other):
        for number, (limits, charge, name, longest_s) in enumerate(cases):
            assert isinstance(await one.admit(f"named-{number}", limits, charge), Grant)
            refusal = await other.admit(f"named-{number}", limits, charge)
            assert isinstance(refusal, Refusal)
            assert refusal.limit is name
            assert refusal.retry_after_s is not None
            assert 0 < refusal.retry_after_s <= longest_s
        never = await one.admit("named-never", Limits(tokens_per_minute=10), Charge(11))
        assert isinstance(never, Refusal)
        assert never.retry_after_s is None


async def test_use_corrects_the_charge_for_everybody(server: RedisServer) -> None:
    limits = Limits(tokens_per_minute=100, concurrent=1, usd_per_day=1.0)
    charge = Charge(100, 1_000_000_000)
    async with gateways(server.url, 2) as (one, other):
        grant = await one.admit("corrected", limits, charge)
        assert isinstance(grant, Grant)
        one.settle(Use("corrected", limits, grant, charge, Charge(20, 100_000_000)))
        await admitted(other, "corrected", limits, Charge(75, 800_000_000))
        refusal = await other.admit("corrected", limits, Charge(30, 0))
        assert isinstance(refusal, Refusal)


async def admitted(gateway: RedisLimits, key_id: str, limits: Limits, charge: Charge) -> Grant:
    """A grant, as soon as there is one."""

    async def granted() -> Grant | None:
        verdict = await gateway.admit(key_id, limits, charge)
        return verdict if isinstance(verdict, Grant) else None

    return await soon(granted, "a grant")


async def test_places_of_a_gateway_that_died_come_back_and_those_of_the_living_stay(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease_s = 5.0  # longer than a stall of this machine, in which nothing is renewed
    monkeypatch.setattr("slipstream_core.redis.redis_limits.LEASE_S", lease_s)
    monkeypatch.setattr("slipstream_core.redis.redis_limits.RENEW_S", 0.2)
    limits = Limits(concurrent=2)
    async with gateways(server.url, 1) as (living,):
        async with gateways(server.url, 1) as (dead,):
            assert isinstance(await dead.admit("places", limits, Charge()), Grant)
        held = await living.admit("places", limits, Charge())
        first_ends_s = time.monotonic() + lease_s
        assert isinstance(held, Grant)
        assert isinstance(await living.admit("places", limits, Charge()), Refusal)
        again = await admitted(living, "places", limits, Charge())  # the dead one's place
        await asyncio.sleep(first_ends_s - time.monotonic())
        assert isinstance(await living.admit("places", limits, Charge()), Refusal)  # the living one's is renewed
        for grant in (held, again):
            living.settle(Use("places", limits, grant, Charge(), Charge()))
        await admitted(living, "places", limits, Charge())


DAY_US = 86_400_000_000


def written_a_day_ahead(redis: Redis, key_id: str) -> None:
    """The state of a caller as Redis has it after its clock was set back by a day."""
    for field in ("r", "t", "at"):
        if redis.hexists(limits_key(key_id), field):
            redis.hincrbyfloat(limits_key(key_id), field, DAY_US)
    for name in redis.zrange(leases_key(key_id), 0, -1):
        redis.zincrby(leases_key(key_id), DAY_US, name)
    for key in (limits_key(key_id), leases_key(key_id)):
        redis.pexpire(key, redis.pttl(key) + DAY_US // 1000)  # Redis stores the instant


async def test_a_clock_that_is_set_back_locks_no_caller_out(server: RedisServer) -> None:
    limits, charge = Limits(requests_per_minute=2, tokens_per_minute=1000), Charge(500)
    usage = RedisUsage(server.url)
    async with gateways(server.url, 1) as (one,):
        with server.client() as redis:
            assert isinstance(await one.admit("back", limits, charge), Grant)
            written_a_day_ahead(redis, "back")
            [used] = await usage.read([("back", limits)]) or []
            assert (round(used.requests), round(used.tokens)) == (1, 500)
            assert isinstance(await one.admit("back", limits, charge), Grant)
            refusal = await one.admit("back", limits, charge)  # its two requests still count
            assert isinstance(refusal, Refusal)
            assert refusal.retry_after_s is not None
            assert refusal.retry_after_s <= 30
    await usage.aclose()


async def test_a_debt_of_tokens_survives_a_clock_that_is_set_back(server: RedisServer) -> None:
    limits = Limits(requests_per_minute=100, tokens_per_minute=100)
    async with gateways(server.url, 1) as (one,):
        with server.client() as redis:
            grant = await one.admit("debt", limits, Charge(10))
            assert isinstance(grant, Grant)
            one.settle(Use("debt", limits, grant, Charge(10), Charge(1010)))
            await soon(lambda: float(redis.hget(limits_key("debt"), "t") or 0) > _now_us(redis) + 500_000_000)
            written_a_day_ahead(redis, "debt")
            refusal = await one.admit("debt", limits, Charge(10))
            assert isinstance(refusal, Refusal)
            assert refusal.limit is LimitName.TOKENS
            assert 500 < (refusal.retry_after_s or 0) < 700
            stored_us = float(redis.hget(limits_key("debt"), "t") or 0)
            assert stored_us - _now_us(redis) < 700_000_000  # it gets shorter from now on


async def test_refund_after_the_clock_was_set_back_is_what_has_not_elapsed(server: RedisServer) -> None:
    limits = Limits(requests_per_minute=100, tokens_per_minute=1000)
    async with gateways(server.url, 1) as (one,):
        with server.client() as redis:
            grant = await one.admit("refund", limits, Charge(600))  # 36 s
            assert isinstance(grant, Grant)
            written_a_day_ahead(redis, "refund")
            later = await one.admit("refund", limits, Charge(300))  # 18 s, by the clock that was set back
            assert isinstance(later, Grant)
            elapsed_us = 30_000_000  # as if both were granted that long ago
            for field in ("r", "t", "at"):
                redis.hincrbyfloat(limits_key("refund"), field, -elapsed_us)
            later = later._replace(tokens_until_us=later.tokens_until_us - elapsed_us)
            before_us = float(redis.hget(limits_key("refund"), "t") or 0)
            granted = grant._replace(tokens_until_us=grant.tokens_until_us + DAY_US - elapsed_us)
            one.settle(Use("refund", limits, granted, Charge(600), Charge(0)))
            await soon(lambda: float(redis.hget(limits_key("refund"), "t") or 0) < before_us)
            refunded_us = before_us - float(redis.hget(limits_key("refund"), "t") or 0)
            assert 0 < refunded_us <= 6_000_000
            one.settle(Use("refund", limits, later, Charge(300), Charge(0)))
            await soon(lambda: float(redis.hget(limits_key("refund"), "t") or 0) < before_us - refunded_us)
            ahead_us = float(redis.hget(limits_key("refund"), "t") or 0) - _now_us(redis)
            assert ahead_us <= 6_000_000  # no caller is locked out


async def test_no_instant_counts_further_ahead_than_it_may(server: RedisServer) -> None:
    """Also not one of an older version, which did not write when it was written."""
    limits = Limits(requests_per_minute=60, tokens_per_minute=6000, concurrent=2)
    async with gateways(server.url, 1) as (one,):
        with server.client() as redis:
            year = {"r": _now_us(redis) + 365 * DAY_US, "t": _now_us(redis) + 365 * DAY_US}
            redis.hset(limits_key("ahead"), mapping=year)
            refusal = await one.admit("ahead", limits, Charge(100))
            assert isinstance(refusal, Refusal)
            assert (refusal.retry_after_s or 0) <= 1.1
            await admitted(one, "ahead", limits, Charge(1))


async def test_places_of_a_dead_gateway_come_back_after_the_clock_was_set_back(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipstream_core.redis.redis_limits.LEASE_S", 1.0)
    limits = Limits(concurrent=1)
    async with gateways(server.url, 1) as (dead,):
        assert isinstance(await dead.admit("gone", limits, Charge()), Grant)
    async with gateways(server.url, 1) as (living,):
        with server.client() as redis:
            written_a_day_ahead(redis, "gone")
            assert isinstance(await living.admit("gone", limits, Charge()), Refusal)
            await admitted(living, "gone", limits, Charge())


async def test_each_choice_takes_a_place_of_all_gateways_and_keeps_it(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipstream_core.redis.redis_limits.LEASE_S", 3.0)
    monkeypatch.setattr("slipstream_core.redis.redis_limits.RENEW_S", 0.2)
    limits, three = Limits(concurrent=4), Charge(places=3)
    async with gateways(server.url, 2) as (one, other):
        grant = await one.admit("choices", limits, three)
        assert isinstance(grant, Grant)
        never = await other.admit("choices", limits, Charge(places=5))
        assert isinstance(never, Refusal)
        assert (never.limit, never.retry_after_s) == (LimitName.CONCURRENT, None)
        await asyncio.sleep(3.5)  # longer than a lease that nobody renews
        refusal = await other.admit("choices", limits, Charge(places=2))
        assert isinstance(refusal, Refusal)
        assert (refusal.limit, refusal.retry_after_s) == (LimitName.CONCURRENT, 1.0)
        one.settle(Use("choices", limits, grant, three, Charge()))
        await admitted(other, "choices", limits, Charge(places=4))


async def test_prompt_dearer_than_the_budget_of_a_day_is_told_never(server: RedisServer) -> None:
    async with gateways(server.url, 1) as (one,):
        refusal = await one.admit("dear", Limits(usd_per_day=1.0), Charge(0, 1_000_000_001))
    assert isinstance(refusal, Refusal)
    assert (refusal.limit, refusal.retry_after_s) == (LimitName.BUDGET, None)


async def test_answers_that_may_be_longer_than_a_limit_are_charged_as_much_as_fits(server: RedisServer) -> None:
    limits = Limits(tokens_per_minute=4000, usd_per_day=1.0)
    async with gateways(server.url, 1) as (one,):
        grant = await one.admit("long", limits, Charge(100_500, 2_000_000_000, 1, 100_000, 1_900_000_000))
        assert isinstance(grant, Grant)
        assert (grant.charged.tokens, grant.charged.nano_usd) == (4000, 1_000_000_000)
        assert isinstance(await one.admit("long", limits, Charge(1000, 1)), Refusal)
        one.settle(Use("long", limits, grant, grant.charged, Charge(600, 200_000_000)))
        await admitted(one, "long", limits, Charge(3000, 800_000_000))


async def test_redis_that_is_slow_or_gone_costs_a_request_little_and_the_next_nothing(
    redis_server: Callable[..., RedisServer],
) -> None:
    own = redis_server()
    limits = Limits(requests_per_minute=100)
    async with gateways(own.url, 1, exchange_s=0.05, most_backoff_s=0.1) as (one,):
        assert isinstance(await admitted(one, "k", limits, Charge()), Grant)
        own.pause()
        assert await one.admit("k", limits, Charge()) is None
        assert not one.connected
        assert await one.admit("k", limits, Charge()) is None
        own.resume()
        await soon(lambda: one.connected)
        assert isinstance(await admitted(one, "k", limits, Charge()), Grant)
        own.kill()
        assert await one.admit("k", limits, Charge()) is None
        own.start()  # it knows no script any more
        await soon(lambda: one.connected)
        assert isinstance(await admitted(one, "k", limits, Charge()), Grant)


async def test_full_redis_counts_as_away(redis_server: Callable[..., RedisServer]) -> None:
    own = redis_server("--maxmemory", "1", "--maxmemory-policy", "noeviction")
    found = RedisLimits(own.url, exchange_s=PATIENCE_S)
    task = asyncio.create_task(found.run())
    try:
        await soon(lambda: found.connected)
        assert await found.admit("k", Limits(requests_per_minute=5), Charge()) is None
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await found.aclose()


async def test_what_redis_may_have_taken_already_is_not_given_back_twice(
    server: RedisServer, proxy: Callable[..., tuple[Any, str]]
) -> None:
    """Answers are cut: a settlement is sent again, and only ever makes the limit stricter."""
    limits = Limits(tokens_per_minute=1000, usd_per_day=1.0)
    cutting, url = proxy(server.port)
    charge, taken = Charge(600, 600_000_000), Charge(300, 300_000_000)
    async with gateways(url, 1, exchange_s=0.5, most_backoff_s=0.05) as (one,):
        grant = await admitted(one, "twice", limits, charge)
        cutting.cut_share = 1.0
        one.settle(Use("twice", limits, grant, charge, taken))
        await soon(lambda: cutting.cuts > 0)
        cutting.cut_share = 0.0
        await soon(lambda: one.connected)
        await admitted(one, "other", limits, charge)
    with server.client() as redis:
        spent = float(redis.hget(limits_key("twice"), "usd") or 0)
        ahead_us = float(redis.hget(limits_key("twice"), "t") or 0) - _now_us(redis)
    assert spent >= taken.nano_usd
    assert ahead_us >= taken.tokens * 60_000 - 15.0e6


async def test_slow_redis_charges_a_request_once(
    server: RedisServer, proxy: Callable[..., tuple[Any, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each exchange ends late, and so do those after it."""
    monkeypatch.setattr(redis_limits, "_LATE_S", PATIENCE_S)
    limits = Limits(usd_per_day=1.0, concurrent=5)
    slow, url = proxy(server.port)
    charge, taken = Charge(0, 100_000_000), Charge(0, 300_000_000)
    with server.client() as redis:
        async with gateways(url, 1, exchange_s=0.025, most_backoff_s=0.05) as (one,):
            grant = None
            while not isinstance(grant, Grant):
                grant = await one.admit("slow", limits, charge)
            slow.delay_s = 0.1
            one.settle(Use("slow", limits, grant, charge, taken))
            knocks = slow.knocks
            while slow.knocks < knocks + 4:
                assert await one.admit("slow", limits, charge) is None
                await asyncio.sleep(0.01)
            slow.delay_s = 0.0
            await soon(lambda: redis.zcard(leases_key("slow")) == 0)
            await soon(lambda: float(redis.hget(limits_key("slow"), "usd") or 0) == taken.nano_usd)


def test_both_keys_of_a_caller_are_in_one_slot_and_no_address_shows_a_password(tmp_path: Path) -> None:
    assert [key[key.index("{") : key.index("}") + 1] for key in (limits_key("a1"), leases_key("a1"))] == ["{a1}"] * 2
    assert "secret" not in repr(RedisLimits("redis://user:secret@127.0.0.1:1/0"))
    assert time.time() > EPOCH_S


async def test_no_key_is_left_in_redis_for_ever(server: RedisServer) -> None:
    """Not by an answer that took longer than its caller's rate needed to recover, either."""
    limits = Limits(tokens_per_minute=100, concurrent=1)
    with server.client() as redis:
        async with gateways(server.url, 1) as (one,):
            grant = await one.admit("late", limits, Charge(50))
            assert isinstance(grant, Grant)
            redis.delete(limits_key("late"))
            one.settle(Use("late", limits, grant, Charge(50), Charge(10)))
            await soon(lambda: not redis.exists(leases_key("late")))
        assert all(redis.pttl(key) != -1 for key in redis.scan_iter())  # -1: no end; what has ended is -2


async def test_request_that_is_cancelled_on_the_way_of_its_answer_keeps_no_place(server: RedisServer) -> None:
    limits = Limits(concurrent=2)
    async with gateways(server.url, 1) as (one,):
        tasks: list[asyncio.Task[Any]] = []

        async def first() -> None:
            grant = await one.admit("cancelled", limits, Charge())
            tasks[1].cancel()  # its grant is there, and it has not run yet
            assert isinstance(grant, Grant)
            one.settle(Use("cancelled", limits, grant, Charge(), Charge()))

        tasks += [asyncio.create_task(first()), asyncio.create_task(one.admit("cancelled", limits, Charge()))]
        await asyncio.gather(*tasks, return_exceptions=True)
        assert tasks[1].cancelled()
        with server.client() as redis:
            await soon(lambda: not redis.exists(leases_key("cancelled")))


async def test_smallest_budget_is_one(server: RedisServer) -> None:
    async with gateways(server.url, 1) as (one,):
        verdict = await one.admit("poor", Limits(usd_per_day=1e-12), Charge(1, 1000))
    assert isinstance(verdict, Refusal)


async def test_answer_that_nobody_understands_counts_as_away(caplog: pytest.LogCaptureFixture) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            for command in data.split(b"\r\n*"):
                writer.write(b"+PONG\r\n" if b"PING" in command else b":7\r\n" if b"EVALSHA" in command else b"+OK\r\n")
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"redis://127.0.0.1:{listening.sockets[0].getsockname()[1]}/0"
    async with listening, gateways(url, 1) as (one,):
        async with asyncio.timeout(PATIENCE_S):
            assert await one.admit("k", Limits(concurrent=1), Charge()) is None
