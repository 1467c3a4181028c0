"""Which replica is next, and how one that fails leaves and comes back. Time is a number here."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slipstream_core.settings import HealthSettings
from slipstream_core.types import Capability
from slipstream_gateway.upstreams.base import Drafting, Upstream
from slipstream_gateway.upstreams.pool import Batch, Pool, Replica
from slipstream_gateway.upstreams.refused_upstream import RefusedUpstream

from tests.support.clock import Clock

FIRST_S, LONGEST_S = HealthSettings().first_ejection_s, HealthSettings().longest_ejection_s


def pool_of(count: int, *, speculative: bool = False) -> tuple[Pool, Clock]:
    clock = Clock()
    nothing = cast(Upstream, None)  # a pool never calls its servers
    replicas = [Replica(f"r{index}", nothing) for index in range(count)]
    return Pool(replicas, clock=clock, speculative=speculative), clock


def take(pool: Pool, draft_length: int = 0) -> Replica:
    replica = pool.pick()
    assert replica is not None
    replica.acquire(draft_length, 0.0)
    return replica


def test_least_outstanding_is_picked_and_equals_take_turns() -> None:
    pool, _ = pool_of(3)
    assert sorted(take(pool).name for _ in range(3)) == ["r0", "r1", "r2"]
    pool.replicas[1].release(0, 0.0)
    assert take(pool).name == "r1"
    names = set()
    for _ in range(3):
        replica = take(pool)
        names.add(replica.name)
        replica.release(0, 0.0)
    assert len(names) == 3


@given(st.lists(st.booleans(), max_size=60))
def test_load_differs_by_one_at_most_while_requests_only_come(arrivals: list[bool]) -> None:
    pool, _ = pool_of(3)
    for _ in arrivals:
        take(pool)
    loads = [replica.outstanding for replica in pool.replicas]
    assert max(loads) - min(loads) <= 1


def fail(replica: Replica, clock: Callable[[], float], *, speculative: bool = False) -> None:
    replica.acquire(int(speculative), 0.0)
    replica.failed(clock(), "upstream_timeout", speculative=speculative)
    replica.release(int(speculative), 0.0)


def test_two_failures_in_a_row_eject_and_one_probe_brings_back() -> None:
    pool, clock = pool_of(1, speculative=True)
    [replica] = pool.replicas
    fail(replica, clock, speculative=True)
    assert pool.pick() is replica
    fail(replica, clock, speculative=True)
    assert pool.pick() is None
    assert pool.retry_after_s() == pytest.approx(FIRST_S)
    clock.now_s += FIRST_S
    probe = take(pool, draft_length=1)
    assert pool.pick() is None  # one request probes, the others go elsewhere
    probe.succeeded(clock(), speculative=True)
    probe.release(1, 0.0)
    assert pool.pick() is replica


def test_ejections_grow_up_to_their_limit() -> None:
    pool, clock = pool_of(1)
    [replica] = pool.replicas
    waits = []
    for _ in range(12):
        fail(replica, clock)
        waits.append(pool.retry_after_s())
        clock.now_s += 60
    assert waits[1:4] == [pytest.approx(FIRST_S * factor) for factor in (1, 2, 4)]
    assert max(waits) == LONGEST_S


def test_success_between_failures_keeps_a_replica_in() -> None:
    pool, clock = pool_of(1)
    for _ in range(5):
        fail(pool.replicas[0], clock)
        pool.replicas[0].succeeded(clock())
    assert pool.pick() is pool.replicas[0]


def test_tried_replicas_are_not_picked_again_and_the_last_resort_is_the_soonest() -> None:
    pool, clock = pool_of(2)
    first, second = pool.replicas
    assert pool.pick([first]) is second
    assert pool.pick([first, second]) is None
    for _ in range(2):
        fail(second, clock)
    clock.now_s += 0.1
    for _ in range(2):
        fail(first, clock)
    assert pool.least_busy() is None
    assert pool.last_resort() is second
    assert pool.pick() is second  # the plain arm never runs dry
    assert pool.pick([second]) is None


def outstanding(pool: Pool) -> int | None:
    replica = pool.least_busy()
    return None if replica is None else replica.outstanding


def test_the_least_load_is_that_of_the_replicas_that_take_requests() -> None:
    pool, clock = pool_of(2)
    assert outstanding(pool) == 0
    for _ in range(5):
        take(pool)
    assert outstanding(pool) == 2
    idle, _ = sorted(pool.replicas, key=lambda replica: replica.outstanding)
    for _ in range(2):
        idle.failed(clock())
    assert outstanding(pool) == 3


def test_a_request_knows_the_company_it_had() -> None:
    """Alone for 1 s, with one of draft length 4 for 2 s, alone again for 1 s; its own draft length is 2."""
    [replica] = pool_of(1)[0].replicas
    start = replica.acquire(2, 10.0)
    replica.acquire(4, 11.0)
    replica.release(4, 13.0)
    batch = Batch.between(start, replica.release(2, 14.0), draft_length=2)
    assert batch.load == pytest.approx(6 / 4)
    assert batch.draft_length == pytest.approx((4 * 2 + 2 * 4) / 6)


def test_time_without_requests_and_before_this_one_does_not_count() -> None:
    [replica] = pool_of(1)[0].replicas
    replica.acquire(6, 0.0)
    replica.release(6, 5.0)
    start = replica.acquire(0, 100.0)
    assert Batch.between(start, replica.release(0, 101.0), draft_length=0) == Batch(1.0, 0.0)


def test_a_request_without_a_duration_was_alone() -> None:
    [replica] = pool_of(1)[0].replicas
    start = replica.acquire(3, 1.0)
    assert Batch.between(start, replica.release(3, 1.0), draft_length=3) == Batch(1.0, 3.0)


@given(st.lists(st.tuples(st.floats(0.001, 2.0), st.integers(0, 8)), min_size=1, max_size=20))
def test_equal_requests_that_run_together_see_their_number(steps: list[tuple[float, int]]) -> None:
    [replica] = pool_of(1)[0].replicas
    count, draft_length = len(steps), steps[0][1]
    starts = [replica.acquire(draft_length, 0.0) for _ in steps]
    end_s = sum(seconds for seconds, _ in steps)
    for start in starts:
        batch = Batch.between(start, replica.release(draft_length, end_s), draft_length=draft_length)
        assert batch.load == pytest.approx(count)
        assert batch.draft_length == pytest.approx(draft_length)


def test_only_requests_that_stand_by_themselves_count_as_standing() -> None:
    pool, _ = pool_of(1)
    (replica,) = pool.replicas
    replica.acquire(4, 0.0, unconditional=True)
    replica.acquire(6, 0.0)
    assert replica.unconditional_draft_lengths == 4
    replica.release(6, 1.0)
    replica.release(4, 1.0, unconditional=True)
    assert replica.unconditional_draft_lengths == 0


class _Describes(RefusedUpstream):
    """A server that describes itself, and gives no answers."""

    def __init__(self, drafting: Drafting, fingerprint: str = "") -> None:
        super().__init__("of the test")
        self._drafting = drafting
        self.fingerprint = fingerprint

    @property
    def drafting(self) -> Drafting:
        return self._drafting


def described(*servers: _Describes) -> Pool:
    return Pool([Replica(f"r{index}", server) for index, server in enumerate(servers)], clock=Clock())


@pytest.mark.parametrize(
    ("servers", "greedy", "sampled"),
    [
        ([Drafting(adaptive=True, seed_equality=True)], True, True),
        ([Drafting(adaptive=True)], True, False),
        ([Drafting(seed_equality=True)], False, False),
        ([Drafting(adaptive=True, seed_equality=True), Drafting(adaptive=True)], True, False),
        ([], False, False),
    ],
)
def test_servers_choose_a_draft_length_only_if_no_token_depends_on_it(
    servers: list[Drafting], greedy: bool, sampled: bool
) -> None:
    pool = described(*map(_Describes, servers))
    assert pool.is_adaptive(Capability.GREEDY_SPECULATION) is greedy
    assert pool.is_adaptive(Capability.SAMPLED_SPECULATION) is sampled


@pytest.mark.parametrize(
    ("fingerprints", "expected"), [(["fp_1", "fp_1"], "fp_1"), (["fp_1", "fp_2"], ""), (["fp_1", ""], ""), ([], "")]
)
def test_a_pool_has_the_fingerprint_that_all_its_servers_have(fingerprints: list[str], expected: str) -> None:
    assert described(*(_Describes(Drafting(), found) for found in fingerprints)).fingerprint == expected
