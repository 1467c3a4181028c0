"""When a server is due for its next check, and an answer for its replay."""

from __future__ import annotations

import pytest
from slipstream_gateway.lossless.schedule import LATEST, LONGEST_RETRY_S, CheckTurns, Pilot, ReplayTurns

EVERY_S = 600.0


@pytest.fixture
def schedule() -> CheckTurns:
    return CheckTurns(EVERY_S)


def test_server_without_a_verdict_is_due_at_once_whatever_it_does(schedule: CheckTurns) -> None:
    assert schedule.is_due(0.0, spare=False)
    assert not schedule.is_late(0.0)


@pytest.mark.parametrize(("draw", "share"), [(0.0, 0.75), (0.5, 1.0), (0.999, 1.2495)])
def test_repeated_check_waits_for_a_spare_server_but_not_for_ever(
    schedule: CheckTurns, draw: float, share: float
) -> None:
    schedule.concluded(100.0, draw)
    due_s, latest_s = 100.0 + share * EVERY_S, 100.0 + LATEST * EVERY_S
    assert not schedule.is_due(due_s - 1.0, spare=True)
    assert schedule.is_due(due_s, spare=True)
    assert not schedule.is_due(latest_s - 1.0, spare=False)
    assert not schedule.is_late(latest_s - 1.0)
    assert schedule.is_due(latest_s, spare=False)
    assert schedule.is_late(latest_s)


def test_check_that_is_not_answered_is_tried_again_after_a_wait_that_doubles(schedule: CheckTurns) -> None:
    waits, now_s = [], 0.0
    for _ in range(8):
        schedule.unanswered(now_s)
        start_s = now_s
        while not schedule.is_due(now_s, spare=False):
            now_s += 1.0
        waits.append(now_s - start_s)
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, LONGEST_RETRY_S, LONGEST_RETRY_S]


def test_repeated_check_that_is_not_answered_waits_for_a_spare_server_again(schedule: CheckTurns) -> None:
    schedule.concluded(0.0, 0.5)
    schedule.unanswered(EVERY_S)
    assert not schedule.is_due(EVERY_S + 2.0, spare=False)
    assert schedule.is_due(EVERY_S + 2.0, spare=True)


def test_check_without_a_result_is_repeated_less_and_less_often(schedule: CheckTurns) -> None:
    schedule.inconclusive(0.0)
    assert not schedule.is_due(EVERY_S / 10.0 - 1.0, spare=True)
    assert schedule.is_due(EVERY_S / 10.0, spare=False)
    for _ in range(8):
        schedule.inconclusive(0.0)
    assert not schedule.is_due(EVERY_S - 1.0, spare=True)
    assert schedule.is_due(EVERY_S, spare=False)


def test_another_server_is_due_soon_but_not_sooner_than_one_that_cannot_be_reached(schedule: CheckTurns) -> None:
    schedule.concluded(0.0, 0.5)
    schedule.renew(10.0)
    assert schedule.is_due(11.0, spare=False)
    assert not schedule.is_late(1e9)
    for _ in range(4):
        schedule.unanswered(20.0)
    schedule.renew(20.1)
    assert not schedule.is_due(27.9, spare=False)
    assert schedule.is_due(28.0, spare=False)


def test_replays_get_a_busy_server_after_a_while_again_and_again() -> None:
    turns = ReplayTurns(5.0)
    turns.ended(100.0)
    for begin_s in (105.0, 110.0):
        assert turns.is_due(begin_s - 4.0, spare=True)
        assert not turns.is_due(begin_s - 0.1, spare=False)
        assert turns.is_due(begin_s, spare=False)
        turns.ended(begin_s)


def test_one_server_of_a_pair_takes_the_probes_until_a_check_has_findings() -> None:
    pilot = Pilot()
    for broken_s in (0.0, 10.0):
        assert pilot.admits(broken_s)
        pilot.begins(broken_s + 5.0)
        assert not pilot.admits(broken_s + 1.0)
        pilot.ended(found=False)
    pilot.begins(20.0)
    assert not pilot.admits(19.0)
    assert pilot.admits(20.0)  # a server that hangs keeps no other one waiting
    pilot.ended(found=True)
    pilot.begins(40.0)
    assert pilot.admits(30.0)
