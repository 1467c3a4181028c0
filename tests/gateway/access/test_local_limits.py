"""Limits of one process under a clock of the test's own: never more than the rate allows, in any window."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slipstream_core.rate_limits import Charge, Grant, InUse, LimitName, Limits, Refusal, Use
from slipstream_gateway.access import LocalLimits

DAY_S = 86_400.0


class Clock:
    def __init__(self) -> None:
        self.now_s = 10 * DAY_S + 100.0

    def us(self) -> float:
        return self.now_s * 1e6

    def s(self) -> float:
        return self.now_s


def limiter(clock: Clock, **options: Any) -> LocalLimits:
    return LocalLimits(clock_us=clock.us, wall_s=clock.s, **options)


steps = st.lists(
    st.tuples(
        st.sampled_from(["admit", "admit", "settle", "wait"]),
        st.integers(0, 40),  # charge, or which request ends
        st.integers(0, 60),  # what it took
        st.floats(0.0, 90.0),  # seconds
    ),
    max_size=60,
)


@given(steps, st.integers(1, 30), st.integers(1, 120), st.integers(1, 4), st.integers(1, 3))
def test_no_window_has_more_than_the_limits(
    script: list[tuple[str, int, int, float]], rpm: int, tpm: int, concurrent: int, parts: int
) -> None:
    clock = Clock()
    limits = Limits(requests_per_minute=rpm, tokens_per_minute=tpm, concurrent=concurrent)
    local = limiter(clock, parts=parts)
    running: list[tuple[Grant, Charge]] = []
    granted: list[tuple[float, int]] = []
    share = [max(1, limit // parts) for limit in (rpm, tpm, concurrent)]
    for action, amount, taken, wait_s in script:
        if action == "wait":
            clock.now_s += wait_s
        elif action == "settle" and running:
            grant, charge = running.pop(amount % len(running))
            local.settle(Use("k", limits, grant, charge, Charge(min(taken, charge.tokens))))
        elif action == "admit":
            verdict = local.admit("k", limits, Charge(amount))
            if isinstance(verdict, Grant):
                running.append((verdict, Charge(amount)))
                granted.append((clock.now_s, amount))
                assert len(running) <= share[2]
    for start, (since_s, _) in enumerate(granted):
        for end in range(start, len(granted)):
            window_s = granted[end][0] - since_s
            assert end - start + 1 <= share[0] * (1 + window_s / 60) + 1e-6


@given(steps, st.integers(1, 120))
def test_tokens_that_are_given_back_are_never_granted_twice(
    script: list[tuple[str, int, int, float]], tpm: int
) -> None:
    """What requests really took, in any window, is within the rate where none took more than was expected."""
    clock, limits = Clock(), Limits(tokens_per_minute=tpm)
    local = limiter(clock)
    running: list[tuple[Grant, Charge, float]] = []
    took: list[tuple[float, int]] = []
    for action, amount, taken, wait_s in script:
        if action == "wait":
            clock.now_s += wait_s
        elif action == "settle" and running:
            grant, charge, at_s = running.pop(amount % len(running))
            used = Charge(min(taken, charge.tokens))
            local.settle(Use("k", limits, grant, charge, used))
            took.append((at_s, used.tokens))
        elif action == "admit":
            verdict = local.admit("k", limits, Charge(amount))
            if isinstance(verdict, Grant):
                running.append((verdict, Charge(amount), clock.now_s))
    took += [(at_s, charge.tokens) for _, charge, at_s in running]
    instants = sorted(at_s for at_s, _ in took)
    for index, since_s in enumerate(instants):
        for until_s in instants[index:]:
            used_tokens = sum(tokens for at_s, tokens in took if since_s <= at_s <= until_s)
            assert used_tokens <= tpm * (1 + (until_s - since_s) / 60) + 1e-6


def test_refusal_says_when_and_that_is_true() -> None:
    clock, limits = Clock(), Limits(requests_per_minute=2)
    local = limiter(clock)
    grants = [local.admit("k", limits, Charge()) for _ in range(2)]
    refusal = local.admit("k", limits, Charge())
    assert [grant.requests.remaining for grant in grants if grant.requests is not None] == [1, 0]
    assert isinstance(refusal, Refusal)
    assert refusal.limit is LimitName.REQUESTS
    assert refusal.retry_after_s is not None
    clock.now_s += refusal.retry_after_s - 0.01
    assert isinstance(local.admit("k", limits, Charge()), Refusal)
    clock.now_s += 0.02
    assert isinstance(local.admit("k", limits, Charge()), Grant)
    assert isinstance(local.admit("other", limits, Charge()), Grant)


def test_request_larger_than_the_limit_is_told_never() -> None:
    refusal = limiter(Clock()).admit("k", Limits(tokens_per_minute=10), Charge(11))
    assert isinstance(refusal, Refusal)
    assert refusal.retry_after_s is None


def test_prompt_dearer_than_the_budget_of_a_day_is_told_never() -> None:
    limits = Limits(usd_per_day=1.0)
    refusal = limiter(Clock()).admit("k", limits, Charge(0, 1_000_000_001))
    assert isinstance(refusal, Refusal)
    assert (refusal.limit, refusal.retry_after_s) == (LimitName.BUDGET, None)


def test_each_choice_takes_a_place_and_all_come_back_together() -> None:
    clock, limits = Clock(), Limits(concurrent=4)
    local = limiter(clock)
    grant = local.admit("k", limits, Charge(places=3))
    assert isinstance(grant, Grant)
    assert local.usage("k", limits).concurrent == 3
    refusal = local.admit("k", limits, Charge(places=2))
    assert isinstance(refusal, Refusal)
    assert (refusal.limit, refusal.retry_after_s) == (LimitName.CONCURRENT, 1.0)
    never = local.admit("k", limits, Charge(places=5))
    assert isinstance(never, Refusal)
    assert (never.limit, never.retry_after_s) == (LimitName.CONCURRENT, None)
    local.settle(Use("k", limits, grant, Charge(places=3), Charge()))
    assert local.usage("k", limits).concurrent == 0
    assert isinstance(local.admit("k", limits, Charge(places=4)), Grant)


@pytest.mark.parametrize("parts", [1, 4])
def test_answers_that_may_be_longer_than_a_limit_are_charged_as_much_as_fits(parts: int) -> None:
    """Of the share of each process, where several know nothing of each other."""
    clock, limits = Clock(), Limits(tokens_per_minute=4000 * parts, usd_per_day=1.0 * parts)
    local = limiter(clock, parts=parts)
    charge = Charge(100_500, 2_000_000_000, 1, 100_000, 1_900_000_000)
    grant = local.admit("k", limits, charge)
    assert isinstance(grant, Grant)
    assert (grant.charged.tokens, grant.charged.nano_usd) == (4000, 1_000_000_000)
    assert isinstance(local.admit("k", limits, Charge(1, 1)), Refusal)
    local.settle(Use("k", limits, grant, grant.charged, Charge(600, 200_000_000)))
    assert local.usage("k", limits)[1:] == (pytest.approx(600), 0, 200_000_000)
    never = local.admit("other", limits, Charge(104_001, 0, 1, 100_000))
    assert isinstance(never, Refusal)  # its prompt alone is beyond the limit
    assert (never.limit, never.retry_after_s) == (LimitName.TOKENS, None)


def test_tokens_beyond_the_expected_are_charged_afterwards() -> None:
    clock, limits = Clock(), Limits(tokens_per_minute=60)
    local = limiter(clock)
    grant = local.admit("k", limits, Charge(10))
    assert isinstance(grant, Grant)
    local.settle(Use("k", limits, grant, Charge(10), Charge(70)))
    refusal = local.admit("k", limits, Charge(1))
    assert isinstance(refusal, Refusal)
    assert refusal.retry_after_s is not None
    assert 10.9 < refusal.retry_after_s < 11.1


def test_budget_is_the_days_and_comes_back_at_midnight_in_utc() -> None:
    clock, limits = Clock(), Limits(usd_per_day=1.0)
    local = limiter(clock)
    grant = local.admit("k", limits, Charge(0, 900_000_000))
    assert isinstance(grant, Grant)
    refusal = local.admit("k", limits, Charge(0, 200_000_000))
    assert isinstance(refusal, Refusal)
    assert (refusal.limit, refusal.retry_after_s) == (LimitName.BUDGET, DAY_S - 100.0)
    local.settle(Use("k", limits, grant, Charge(0, 900_000_000), Charge(0, 100_000_000)))
    today = local.admit("k", limits, Charge(0, 900_000_000))
    assert isinstance(today, Grant)
    clock.now_s += DAY_S
    assert isinstance(local.admit("k", limits, Charge(0, 1_000_000_000)), Grant)
    local.settle(Use("k", limits, today, Charge(0, 900_000_000), Charge()))  # what yesterday did not take is gone
    assert isinstance(local.admit("k", limits, Charge(0, 1)), Refusal)


def test_many_callers_that_cannot_be_forgotten_cost_newcomers_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream_gateway.access.local_limits.MOST_CALLERS", 10)
    clock, looks = Clock(), 0

    def counted() -> float:
        nonlocal looks
        looks += 1
        return clock.us()

    local = LocalLimits(clock_us=counted, wall_s=clock.s)
    for number in range(1000):  # who spent something today is remembered until tomorrow
        assert isinstance(local.admit(f"k{number}", Limits(usd_per_day=1.0), Charge(1, 1)), Grant)
    assert looks <= 1000 + 8


def test_usage_is_what_was_granted_and_not_worked_off_yet() -> None:
    clock = Clock()
    local = limiter(clock, parts=2)
    limits = Limits(requests_per_minute=60, tokens_per_minute=600, concurrent=4, usd_per_day=1.0)
    assert local.usage("key", limits) == InUse()
    grant = local.admit("key", limits, Charge(100, 7))
    assert isinstance(grant, Grant)
    assert local.usage("key", limits) == (pytest.approx(1.0), pytest.approx(100.0), 1, 7)
    clock.now_s += 10.0  # this process has half of each rate
    assert local.usage("key", limits) == (0.0, pytest.approx(50.0), 1, 7)
    local.settle(Use("key", limits, grant, Charge(100, 7), Charge(100, 9)))
    clock.now_s += 60.0
    assert local.usage("key", limits) == (0.0, 0.0, 0, 9)
    clock.now_s += DAY_S
    assert local.usage("key", limits) == InUse()


def test_caller_with_a_request_in_flight_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream_gateway.access.local_limits.MOST_CALLERS", 10)
    local, limits = limiter(Clock()), Limits(concurrent=1)
    assert isinstance(local.admit("busy", limits, Charge(1)), Grant)
    for number in range(30):
        local.admit(f"k{number}", Limits(requests_per_minute=60), Charge(1))
    assert isinstance(local.admit("busy", limits, Charge(1)), Refusal)


def test_tokens_beyond_the_expected_count_from_the_end_of_a_long_request() -> None:
    clock, limits = Clock(), Limits(tokens_per_minute=60)
    local = limiter(clock)
    grant = local.admit("k", limits, Charge(10))
    assert isinstance(grant, Grant)
    clock.now_s += 600.0
    local.settle(Use("k", limits, grant, Charge(10), Charge(70)))
    assert local.usage("k", limits).tokens == pytest.approx(60.0)
