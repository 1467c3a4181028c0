"""When an arm of a server is left out, and what that leaves alone. Time is a number here."""

from __future__ import annotations

import random
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream_core.settings import HealthSettings
from slipstream_gateway.upstreams.base import Upstream
from slipstream_gateway.upstreams.pool import Circuit, Pool, Replica

HEALTH = HealthSettings()
CAUSES = ("upstream_unavailable", "upstream_timeout", "upstream_failed", "stalled", "overloaded")


class Arm:
    """A pool of one arm, with a clock that stands still until it is moved."""

    def __init__(self, count: int, *, speculative: bool = False) -> None:
        self.now_s = 1000.0
        nothing = cast(Upstream, None)  # a pool never calls its servers
        self.replicas = [Replica(f"r{index}", nothing) for index in range(count)]
        self.pool = Pool(self.replicas, clock=lambda: self.now_s, speculative=speculative)

    def fails(
        self, replica: Replica, cause: str = "upstream_failed", *, speculative: bool = False, key: str = ""
    ) -> None:
        replica.acquire(int(speculative), self.now_s)
        replica.failed(self.now_s, cause, speculative=speculative, key=key)
        replica.release(int(speculative), self.now_s)

    def serves(self, replica: Replica, ttft_s: float | None = None, *, key: str = "") -> None:
        replica.acquire(0, self.now_s)
        replica.succeeded(self.now_s, ttft_s=ttft_s)
        replica.completed(self.now_s, key=key)
        replica.release(0, self.now_s)

    def sweep(self) -> None:
        self.now_s += 1.1
        self.pool.pick()

    def circuits(self) -> list[str]:
        return [state.circuit for state in self.pool.states()]


def test_what_fails_on_one_arm_leaves_the_other_alone() -> None:
    arm = Arm(1)
    [shared] = arm.replicas
    speculative = Pool([shared], clock=lambda: arm.now_s, speculative=True)
    for _ in range(HEALTH.failed_in_a_row):
        arm.fails(shared, speculative=True)
    assert speculative.pick() is None
    assert arm.circuits() == [Circuit.CLOSED]
    assert arm.pool.pick() is shared


def test_a_server_that_is_gone_is_gone_for_both_arms() -> None:
    arm = Arm(2)
    for _ in range(HEALTH.unreachable_in_a_row):
        arm.fails(arm.replicas[0], "upstream_unavailable", speculative=True)
    assert arm.circuits() == [Circuit.OPEN, Circuit.CLOSED]


@pytest.mark.parametrize("cause", ["upstream_failed", "upstream_timeout", "overloaded"])
@pytest.mark.parametrize("others", [1, 2, 5])
def test_one_keys_failures_do_not_eject_a_server_that_serves_others(others: int, cause: str) -> None:
    arm = Arm(2)
    for turn in range(200):
        arm.serves(arm.replicas[0], key=f"honest {turn % others}")
        for _ in range(HEALTH.failed_in_a_row + 5):
            arm.fails(arm.replicas[0], cause, key="hostile")
        arm.sweep()
    assert arm.circuits() == [Circuit.CLOSED, Circuit.CLOSED]


@pytest.mark.parametrize("keys", [1, 2, 5])
def test_a_server_that_fails_for_every_key_is_ejected(keys: int) -> None:
    """A single key's answers stop counting as other keys' after a few seconds."""
    arm = Arm(2)
    for turn in range(5):
        arm.serves(arm.replicas[0], key=f"key {turn}")
    arm.now_s += 6.0 if keys == 1 else 0.0
    for turn in range(HEALTH.failed_in_a_row + 1):
        arm.fails(arm.replicas[0], key=f"key {turn % keys}")
    assert arm.circuits() == [Circuit.OPEN, Circuit.CLOSED]


def test_streams_that_break_after_their_first_piece_count_as_failures_in_a_row() -> None:
    arm = Arm(2)
    for _ in range(HEALTH.failed_in_a_row):
        arm.replicas[0].succeeded(arm.now_s, ttft_s=0.01)
        arm.fails(arm.replicas[0])
    assert arm.circuits() == [Circuit.OPEN, Circuit.CLOSED]


def test_refusals_for_too_much_work_eject_nobody_but_others_are_preferred() -> None:
    arm = Arm(2)
    for _ in range(20):
        arm.fails(arm.replicas[0], "overloaded")
    assert arm.circuits() == [Circuit.CLOSED, Circuit.CLOSED]
    for _ in range(5):
        arm.replicas[1].acquire(0, arm.now_s)
    assert arm.pool.pick() is arm.replicas[1]


def test_error_rate_ejects_with_enough_requests_and_not_more_than_the_pool_can_spare() -> None:
    arm = Arm(4)
    for replica in arm.replicas:
        for _ in range(HEALTH.min_requests // 2 - 1):  # never many in a row
            arm.serves(replica)
            arm.fails(replica)
    arm.sweep()
    assert arm.circuits().count(Circuit.OPEN) == 0  # too few to tell
    for replica in arm.replicas:
        for _ in range(2):
            arm.serves(replica)
            arm.fails(replica)
    arm.sweep()
    assert arm.circuits().count(Circuit.OPEN) == 2


def test_old_failures_are_forgotten() -> None:
    arm = Arm(2)
    for _ in range(HEALTH.min_requests):
        arm.serves(arm.replicas[0])
        arm.fails(arm.replicas[0])
    arm.now_s += HEALTH.window_s + 1
    arm.sweep()
    assert arm.circuits() == [Circuit.CLOSED, Circuit.CLOSED]
    assert arm.pool.states()[0].drag == 1.0


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_server_with_late_first_tokens_is_ejected_alone(count: int) -> None:
    arm = Arm(count)
    chance = random.Random(7)
    for _ in range(HEALTH.min_latencies):
        for index, replica in enumerate(arm.replicas):
            usual_s = chance.uniform(0.05, 0.15)
            arm.serves(replica, 10 * usual_s if index == 1 else usual_s)
    arm.sweep()
    assert arm.circuits() == [Circuit.OPEN if index == 1 else Circuit.CLOSED for index in range(count)]
    assert arm.pool.states()[1].cause == "latency"


def test_servers_that_are_slow_together_or_by_a_few_long_prompts_stay() -> None:
    arm = Arm(3)
    for index in range(HEALTH.min_latencies):
        for replica in arm.replicas:
            arm.serves(replica, 30.0 if index % 3 == 0 and replica is arm.replicas[0] else 2.0)
    arm.sweep()
    assert set(arm.circuits()) == {Circuit.CLOSED}


def test_requests_sent_before_an_ejection_make_it_no_longer_and_end_it_no_sooner() -> None:
    arm = Arm(2)
    [replica, _] = arm.replicas
    for _ in range(20):
        replica.acquire(0, arm.now_s)
    for _ in range(20):
        replica.failed(arm.now_s, "stalled")
    assert arm.pool.states()[0].retry_after_s == pytest.approx(HEALTH.first_ejection_s)
    replica.completed(arm.now_s)
    assert arm.circuits()[0] == Circuit.OPEN
    arm.now_s += HEALTH.first_ejection_s
    assert arm.circuits()[0] == Circuit.HALF_OPEN
    arm.fails(replica, "stalled")
    assert arm.pool.states()[0].retry_after_s == pytest.approx(2 * HEALTH.first_ejection_s)


def test_a_server_that_fails_some_requests_at_once_draws_no_more_than_its_share() -> None:
    """Least outstanding alone would send nearly everything to the one that never has anything in flight."""
    arm = Arm(3)
    chance = random.Random(3)
    running: list[tuple[float, Replica]] = []
    sent = {replica.name: 0 for replica in arm.replicas}
    for _ in range(2000):
        arm.now_s += 0.01
        for done in [one for one in running if one[0] <= arm.now_s]:
            running.remove(done)
            done[1].completed(arm.now_s)
            done[1].release(0, arm.now_s)
        replica = arm.pool.pick()
        assert replica is not None
        sent[replica.name] += 1
        if replica is arm.replicas[0] and chance.random() < 0.4:
            arm.fails(replica)
        else:
            replica.acquire(0, arm.now_s)
            replica.succeeded(arm.now_s, ttft_s=0.01)
            running.append((arm.now_s + 0.3, replica))
    assert sent["r0"] <= 2000 / 3


@given(
    events=st.lists(st.tuples(st.integers(0, 2), st.sampled_from((*CAUSES, "served")), st.floats(0, 3)), max_size=40),
    count=st.integers(1, 3),
)
@settings(deadline=None, max_examples=60)
def test_a_plain_arm_always_has_somewhere_to_go(events: list[tuple[int, str, float]], count: int) -> None:
    arm = Arm(count)
    for index, what, seconds in events:
        arm.now_s += seconds
        replica = arm.replicas[index % count]
        if what == "served":
            arm.serves(replica, seconds)
        else:
            arm.fails(replica, what)
        assert arm.pool.pick() is not None
        for state in arm.pool.states():
            assert state.drag >= 1.0
            assert 0.0 <= state.retry_after_s <= HEALTH.longest_ejection_s + 1e-6
    arm.now_s += HEALTH.longest_ejection_s + 1e-6
    assert Circuit.OPEN not in arm.circuits()
