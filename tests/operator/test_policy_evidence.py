"""Outcomes from a real Redis into a policy's ledger, across restarts of the operator and of Redis."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime

import msgspec
import pytest
from slipstream_core.errors import CommandError
from slipstream_core.manifest.speculation_policy import SpeculationPolicy
from slipstream_core.manifest.status import ClassStatus, Phase, SpeculationPolicyStatus
from slipstream_core.redis.redis_store import RedisStore
from slipstream_core.types import Arm
from slipstream_operator.cluster.resources import Kind, ObjectKey
from slipstream_operator.rollout.analysis.metrics import Metric
from slipstream_operator.rollout.evidence import CHECKPOINT_LOST, GRACE_S, CollectedEvidence
from slipstream_operator.status.conditions import rfc3339

from tests.operator.policy_world import CODE, LONG, PAIR_KEY, observation, policy_of, raw_policy
from tests.support.polling import soon
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.integration

KEY = ObjectKey(Kind.SPECULATION_POLICY, "team", "careful")
POLICY = policy_of(raw_policy())
CREATED = "2026-01-01T00:00:00Z"
EMPTY = SpeculationPolicyStatus()


class Operator:
    """What runs of an operator for the evidence; its clock stands where it is put."""

    def __init__(
        self, url: str | None, checkpoint: str = "", *, follows: bool = True, policy: SpeculationPolicy | None = POLICY
    ) -> None:
        self.now_s = time.time()
        self.changed: list[ObjectKey] = []
        self.evidence = CollectedEvidence(url, interval_s=0.01, changed=self.changed.append, clock_s=lambda: self.now_s)
        self.lost = self.evidence.open(KEY, policy, pair_key=PAIR_KEY, checkpoint=checkpoint, created=CREATED)
        if follows:
            self.evidence.follow(KEY, EMPTY)
        self._task = asyncio.create_task(self.evidence.run())

    def seen(self, name: str = CODE) -> int:
        facts = self.evidence.facts(KEY).get(name)
        return next(guard.seen for guard in facts.guards if guard.metric is Metric.ACCEPTANCE) if facts else 0

    async def stop(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self.evidence.aclose()


@pytest.fixture
async def gateway(redis: RedisServer) -> AsyncIterator[RedisStore]:
    """A gateway's store, which writes."""
    store = RedisStore(redis.url, pairs=tuple, interval_s=0.01, stream_entries=10_000)
    task = asyncio.create_task(store.run(lambda _: None))
    yield store
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await store.aclose()


@pytest.fixture
async def operator() -> AsyncIterator[Callable[..., Operator]]:
    started: list[Operator] = []

    def start(*arguments: object, **options: object) -> Operator:
        started.append(Operator(*arguments, **options))
        return started[-1]

    yield start
    await asyncio.gather(*(one.stop() for one in started), return_exceptions=True)


def send(gateway: RedisStore, count: int, name: str = CODE, **more: object) -> None:
    for _ in range(count):
        gateway.append(observation(name, time_s=time.time(), **more))


async def test_each_outcome_counts_once_across_restarts_in_the_middle(
    redis: RedisServer, gateway: RedisStore, operator: Callable[..., Operator]
) -> None:
    first = operator(redis.url)
    send(gateway, 500)
    await soon(lambda: first.seen() >= 100, "some outcomes")
    checkpoint = first.evidence.checkpoint(KEY, EMPTY)
    send(gateway, 500)
    await soon(lambda: first.seen() == 1_000, "the outcomes that the checkpoint does not have")
    await first.stop()
    send(gateway, 500)
    second = operator(redis.url, checkpoint)
    assert second.lost is None
    await soon(lambda: second.seen() >= 1_500, "everything")
    await asyncio.sleep(0.1)
    assert second.seen() == 1_500
    await soon(lambda: second.changed == [KEY], "told once of them all")


async def test_a_loss_is_told_at_once(
    redis: RedisServer, gateway: RedisStore, operator: Callable[..., Operator]
) -> None:
    one = operator(redis.url)
    since = rfc3339(datetime.fromtimestamp(one.now_s - 3600, UTC))
    promoted = ClassStatus(name=CODE, phase=Phase.PROMOTED, share=1.0, since=since)
    one.evidence.follow(KEY, msgspec.structs.replace(EMPTY, classes=(promoted,)))
    for _ in range(100):
        send(gateway, 1, e2e_s=2.0)
        send(gateway, 1, arm=Arm.CONTROL)
    await soon(lambda: (found := one.evidence.facts(KEY).get(CODE)) is not None and found.loss is not None, "a loss")
    assert KEY in one.changed  # and not after the pause between two reconciles
    back = msgspec.structs.replace(promoted, phase=Phase.ROLLED_BACK, share=0.0)
    one.evidence.follow(KEY, msgspec.structs.replace(EMPTY, classes=(back,)))
    one.changed.clear()
    send(gateway, 1, name=LONG)
    await soon(lambda: LONG in one.evidence.facts(KEY), "an outcome of another class")
    assert one.changed == []  # the loss has been acted on


async def test_redis_that_was_emptied_is_gone_on_with(
    redis: RedisServer, gateway: RedisStore, operator: Callable[..., Operator], caplog: pytest.LogCaptureFixture
) -> None:
    one = operator(redis.url)
    send(gateway, 100)
    await soon(lambda: one.seen() == 100, "the first")
    checkpoint = one.evidence.checkpoint(KEY, EMPTY)
    await one.stop()
    send(gateway, 64)
    await soon(lambda: gateway.status().buffered == 0, "stored")
    with redis.client() as client:
        client.flushall()
    other = operator(redis.url, checkpoint)
    send(gateway, 50)
    await soon(lambda: other.seen() == 150, "what was there and what came")
    assert "Redis removed 64 outcomes before they were read" in caplog.text


async def test_nothing_is_read_before_it_is_known_where_the_classes_are(
    redis: RedisServer, gateway: RedisStore, operator: Callable[..., Operator]
) -> None:
    send(gateway, 30)
    await soon(lambda: gateway.status().stored == 30, "stored")
    one = operator(redis.url, follows=False)
    await asyncio.sleep(0.2)
    assert one.evidence.facts(KEY) == {}
    since = rfc3339(datetime.now(UTC).replace(microsecond=0))
    back = ClassStatus(name=CODE, phase=Phase.PROGRESSING, share=0.1, since=since, retries=1)
    await asyncio.sleep(1.0)  # `since` has whole seconds
    one.now_s = time.time()
    one.evidence.follow(KEY, msgspec.structs.replace(EMPTY, classes=(back,)))
    send(gateway, 20, e2e_s=0.01)
    await soon(lambda: one.seen() >= 20, "what began after the class stood where it stands")
    assert one.seen() == 20


async def test_before_the_first_read_silence_proves_nothing(
    redis: RedisServer, gateway: RedisStore, operator: Callable[..., Operator]
) -> None:
    one = operator(redis.url)
    send(gateway, 20)
    await soon(lambda: one.seen() == 20, "outcomes")
    checkpoint = one.evidence.checkpoint(KEY, EMPTY)
    await one.stop()
    redis.kill()
    later = operator(redis.url, checkpoint)
    facts = later.evidence.facts(KEY)[CODE]
    assert not facts.complete
    assert facts.last_outcome_s == later.now_s
    assert later.evidence.is_connected(KEY)
    later.now_s += GRACE_S
    assert not later.evidence.is_connected(KEY)
    redis.start()
    await soon(lambda: later.evidence.is_connected(KEY), "connected")
    assert later.evidence.facts(KEY)[CODE].complete


async def test_store_that_is_away_for_a_moment_is_no_news(
    redis: RedisServer, gateway: RedisStore, operator: Callable[..., Operator]
) -> None:
    one = operator(redis.url)
    await soon(lambda: one.evidence.is_connected(KEY) and one.evidence.facts(KEY) == {}, "connected")
    send(gateway, 1)
    await soon(lambda: one.seen() == 1, "read")
    redis.kill()
    await soon(lambda: not gateway.status().connected, "noticed")
    assert one.evidence.is_connected(KEY)

    def is_away_for_long() -> bool:
        one.now_s += GRACE_S  # again and again: the operator may notice later than the gateway
        return not one.evidence.is_connected(KEY)

    await soon(is_away_for_long, "away for long")


async def test_only_what_belongs_to_a_policy_in_force_is_kept(
    redis: RedisServer, gateway: RedisStore, operator: Callable[..., Operator]
) -> None:
    one = operator(redis.url)
    send(gateway, 5, pair="team/other")
    gateway.append(observation(LONG, Arm.SPECULATIVE, time_s=1.0))  # long before the policy was made
    send(gateway, 5)
    await soon(lambda: one.seen() == 5, "its own")
    assert set(one.evidence.facts(KEY)) == {CODE}
    rival = ObjectKey(Kind.SPECULATION_POLICY, "team", "other")
    one.evidence.open(rival, POLICY, pair_key=PAIR_KEY, checkpoint="")
    assert one.evidence.facts(KEY) == {}
    assert one.evidence.checkpoint(KEY, EMPTY) == ""
    one.evidence.close(rival)
    assert one.evidence.facts(rival) == {}


async def test_policy_that_cannot_be_read_is_still_guarded_after_a_restart(
    redis: RedisServer, gateway: RedisStore, operator: Callable[..., Operator]
) -> None:
    one = operator(redis.url, policy=None)
    send(gateway, 30, status="upstream_failed")
    await soon(lambda: CODE in one.evidence.facts(KEY), "heard of it")
    await soon(lambda: one.evidence.facts(KEY)[CODE].errors.failures == 30, "its errors")
    assert one.evidence.open(KEY, POLICY, pair_key=PAIR_KEY, checkpoint="") is None
    one.evidence.follow(KEY, EMPTY)
    assert any(guard.metric is Metric.ACCEPTANCE for guard in one.evidence.facts(KEY)[CODE].guards)


async def test_outcomes_of_a_pause_only_show_that_the_class_is_alive(
    redis: RedisServer, gateway: RedisStore, operator: Callable[..., Operator]
) -> None:
    one = operator(redis.url)
    one.evidence.follow(KEY, EMPTY, paused=True)
    send(gateway, 20)
    await soon(lambda: bool(one.evidence.facts(KEY)), "heard of it")
    await soon(lambda: gateway.status().stored == 20 and one.evidence.is_connected(KEY), "all of it")
    assert one.seen() == 0


async def test_broken_checkpoint_is_told_and_replaced(redis: RedisServer, operator: Callable[..., Operator]) -> None:
    one = operator(redis.url, "bm90IG91cnM=")
    assert one.lost is not None
    assert (one.lost.type, one.lost.reason) == ("Warning", CHECKPOINT_LOST)
    assert "status.checkpoint" in one.lost.message
    assert one.evidence.checkpoint(KEY, EMPTY)


async def test_without_redis_nothing_is_ever_known(operator: Callable[..., Operator]) -> None:
    one = operator(None)
    await asyncio.sleep(0)
    one.now_s += GRACE_S
    assert not one.evidence.is_connected(KEY)
    assert one.evidence.facts(KEY) == {}


def test_address_is_checked_before_anything_runs() -> None:
    with pytest.raises(CommandError):
        CollectedEvidence("http://cache")
