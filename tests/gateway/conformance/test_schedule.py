"""When a server is due for its next check."""

from __future__ import annotations

import pytest
from slipstream_gateway.conformance.duties import LATEST, LONGEST_RETRY_S, Schedule

EVERY_S = 600.0


@pytest.fixture
def schedule() -> Schedule:
    return Schedule(EVERY_S)


def test_server_without_a_verdict_is_due_at_once_whatever_it_does(schedule: Schedule) -> None:
    assert schedule.is_due(0.0, spare=False)
    assert not schedule.is_late(0.0)


@pytest.mark.parametrize(("draw", "share"), [(0.0, 0.75), (0.5, 1.0), (0.999, 1.2495)])
def test_repeated_check_waits_for_a_spare_server_but_not_for_ever(
    schedule: Schedule, draw: float, share: float
) -> None:
    schedule.concluded(100.0, draw)
    due_s, latest_s = 100.0 + share * EVERY_S, 100.0 + LATEST * EVERY_S
    assert not schedule.is_due(due_s - 1.0, spare=True)
    assert schedule.is_due(due_s, spare=True)
    assert not schedule.is_due(latest_s - 1.0, spare=False)
    assert not schedule.is_late(latest_s - 1.0)
    assert schedule.is_due(latest_s, spare=False)
    assert schedule.is_late(latest_s)


def test_check_that_is_not_answered_is_tried_again_after_a_wait_that_doubles(schedule: Schedule) -> None:
    waits, now_s = [], 0.0
    for _ in range(8):
        schedule.unanswered(now_s)
        start_s = now_s
        while not schedule.is_due(now_s, spare=False):
            now_s += 1.0
        waits.append(now_s - start_s)
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, LONGEST_RETRY_S, LONGEST_RETRY_S]


def test_repeated_check_that_is_not_answered_waits_for_a_spare_server_again(schedule: Schedule) -> None:
    schedule.concluded(0.0, 0.5)
    schedule.unanswered(EVERY_S)
    assert not schedule.is_due(EVERY_S + 2.0, spare=False)
    assert schedule.is_due(EVERY_S + 2.0, spare=True)


def test_check_without_a_result_is_repeated_less_and_less_often(schedule: Schedule) -> None:
    schedule.inconclusive(0.0)
    assert not schedule.is_due(EVERY_S / 10.0 - 1.0, spare=True)
    assert schedule.is_due(EVERY_S / 10.0, spare=False)
    for _ in range(8):
        schedule.inconclusive(0.0)
    assert not schedule.is_due(EVERY_S - 1.0, spare=True)
    assert schedule.is_due(EVERY_S, spare=False)


def test_another_server_is_due_soon_but_not_sooner_than_one_that_cannot_be_reached(schedule: Schedule) -> None:
    schedule.concluded(0.0, 0.5)
    schedule.renew(10.0)
    assert schedule.is_due(11.0, spare=False)
    assert not schedule.is_late(1e9)
    for _ in range(4):
        schedule.unanswered(20.0)
    schedule.renew(20.1)
    assert not schedule.is_due(27.9, spare=False)
    assert schedule.is_due(28.0, spare=False)
