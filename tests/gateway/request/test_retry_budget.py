"""Retries stay a share of the requests, whatever fails. Time is a number here."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from slipstream_gateway.request.retry_budget import RetryBudget

SHARE, PER_S, AGE_S = 0.2, 10.0, 10.0


@example([(5.7e-16, 4, 400)])
@given(st.lists(st.tuples(st.floats(0, 30), st.integers(0, 400), st.integers(0, 400)), max_size=40))
def test_retries_never_exceed_their_share_and_the_floor(steps: list[tuple[float, int, int]]) -> None:
    now_s, requests, retries = 0.0, 0, 0
    budget = RetryBudget(clock=lambda: now_s)
    for seconds, coming, asking in steps:
        now_s += seconds
        for _ in range(coming):
            budget.deposit()
        requests += coming
        retries += sum(budget.allow() for _ in range(asking))
        assert retries <= SHARE * requests + PER_S * (now_s + AGE_S) + 1e-6
        assert retries == budget.spent


def test_every_request_of_a_quiet_gateway_may_be_tried_again() -> None:
    now_s = 0.0
    budget = RetryBudget(clock=lambda: now_s)
    for _ in range(50):
        now_s += 1.0
        budget.deposit()
        assert all(budget.allow() for _ in range(3))


def test_a_storm_is_cut_to_the_share() -> None:
    """1,000 requests a second for 30 s, each of which would be tried three times more."""
    now_s = 0.0
    budget = RetryBudget(clock=lambda: now_s)
    for _ in range(30_000):
        now_s += 0.001
        budget.deposit()
        while budget.allow():
            pass
    assert budget.spent <= SHARE * 30_000 + PER_S * (30 + AGE_S)
    assert budget.refused >= 30_000 * 0.7
