"""The operator's notes about drafts that have become worse."""

from __future__ import annotations

import pytest
from slipstream_core.drift import WINDOW
from slipstream_core.observation import Observation
from slipstream_core.types import Arm
from slipstream_operator.rollout.draft_drift import DRAFT_DRIFT, DriftWatch

from tests.operator.policy_world import CODE, LONG, observation

NOW_S = 1_800_000_000.0
ENOUGH = 2 * WINDOW + 20


def answers(name: str = CODE, **more: object) -> list[Observation]:
    return [observation(name, **{"time_s": NOW_S + number, **more}) for number in range(ENOUGH)]


def worse(name: str = CODE, **more: object) -> list[Observation]:
    return answers(name, **{"steps": 100, "acceptance": 0.5, **more})


def notes(*observations: list[Observation]) -> list[str]:
    drifts = DriftWatch()
    for seen in observations:
        for one in seen:
            drifts.record(one)
    taken = drifts.take()
    assert drifts.take() == ()
    assert {(note.type, note.reason) for note in taken} <= {("Warning", DRAFT_DRIFT)}
    return [note.message for note in taken]


def test_the_note_has_the_class_both_figures_and_the_time() -> None:
    [message] = notes(answers(), answers(LONG), worse())
    assert message == (
        f"{CODE}: 2.00 tokens per step in the 200 speculative answers from 2027-01-15T08:00:37Z on, 3.33 before; "
        "a draft can be trained on captured answers since then"
    )


@pytest.mark.parametrize(
    "more",
    [
        {"arm": Arm.PLAIN},
        {"arm": Arm.CONTROL},
        {"status": "upstream_failed"},
        {"canary": True},
        {"steps": 0},
        {"drafted": 0},
        {"output_tokens": 0},
        {"time_s": 1e300},
        {"time_s": -1e300},
    ],
    ids=str,
)
def test_other_outcomes_do_not_count(more: dict[str, object]) -> None:
    assert notes(answers(), worse(**more)) == []


def test_a_busy_engine_that_drafts_less_is_no_drift() -> None:
    assert notes(answers(), worse(acceptance=0.9)) == []
