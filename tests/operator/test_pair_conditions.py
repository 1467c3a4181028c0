"""Conditions by Kubernetes' conventions, said anew from the last ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from slipstream_core.manifest.status import Condition, ConditionType
from slipstream_operator.status.conditions import MAX_MESSAGE_CHARS, Conditions, find, read_time, rfc3339

NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)
READY = ConditionType.READY


def prior(status: str = "True", *, time: str = "2026-11-20T11:00:00Z") -> list[Condition]:
    return [Condition(type="Ready", status=status, reason="R", message="m", last_transition_time=time)]  # type: ignore[arg-type]


def test_a_status_that_stays_keeps_its_time_whatever_else_changes():
    [said] = Conditions(prior(), 7, NOW).set(READY, "True", "Other", "other words")
    assert said == Condition(
        type="Ready",
        status="True",
        reason="Other",
        message="other words",
        last_transition_time="2026-11-20T11:00:00Z",
        observed_generation=7,
    )


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        pytest.param("2026-11-20T11:00:00Z", "2026-11-20T12:00:00Z", id="now"),
        pytest.param("2026-11-20T12:30:00Z", "2026-11-20T12:30:00Z", id="not back in time"),
        pytest.param("yesterday", "2026-11-20T12:00:00Z", id="written by hand"),
        pytest.param("2026-11-20T11:00:00", "2026-11-20T12:00:00Z", id="without a time zone"),
    ],
)
def test_a_status_that_flips_moves_its_time(time: str, expected: str):
    [said] = Conditions(prior(time=time), 1, NOW).set(READY, "False", "R", "m")
    assert said.last_transition_time == expected


def test_a_time_that_cannot_be_read_is_replaced():
    [said] = Conditions(prior(time="yesterday"), 1, NOW).set(READY, "True", "R", "m")
    assert said.last_transition_time == "2026-11-20T12:00:00Z"


def test_what_is_not_said_again_is_gone():
    conditions = Conditions(prior(), 1, NOW)
    conditions.set(ConditionType.PROGRESSING, "False", "Complete", "m")
    assert [condition.type for condition in conditions.all] == ["Progressing"]
    assert find(conditions.all, READY) is None


def test_the_last_word_counts():
    conditions = Conditions([], 1, NOW)
    conditions.set(READY, "True", "R", "m")
    [said] = conditions.set(READY, "False", "R", "m")
    assert said.status == "False"


def test_a_message_is_as_long_as_it_may_be():
    [said] = Conditions([], 1, NOW).set(READY, "True", "R", "m" * 100_000)
    assert len(said.message) == MAX_MESSAGE_CHARS


def test_times_are_utc_and_come_back():
    moment = NOW.astimezone(timezone(timedelta(hours=5)))
    assert rfc3339(moment) == "2026-11-20T12:00:00Z"
    assert read_time(rfc3339(moment)) == NOW
