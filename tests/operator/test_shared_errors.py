"""Errors that the control has, too, are the servers': a class is kept, and the policy says so."""

from __future__ import annotations

from typing import Any

import pytest
from slipstream_core.manifest.status import Phase
from slipstream_core.types import Arm

from tests.operator.policy_world import CODE, World, observation, promoted, raw_policy


def compared(**spec: Any) -> World:
    """A promoted class whose window is empty."""
    world = promoted(count=300, **{"thresholds": {}, **spec})
    world.wait(800.0)
    return world


def fail(world: World, *, speculative: tuple[int, int], control: tuple[int, int], seconds: float = 60.0) -> None:
    """Failed requests and all requests of both arms at the same time, spread evenly."""
    begin = world.now.timestamp()
    seen = []
    for arm, (failures, requests) in ((Arm.SPECULATIVE, speculative), (Arm.CONTROL, control)):
        for index in range(requests):
            failed = (index + 1) * failures // requests > index * failures // requests
            status = "upstream_failed" if failed else "ok"
            time_s = begin + seconds * (index + 1) / requests
            e2e_s = (0.5 if arm is Arm.SPECULATIVE else 1.0) * world.random.uniform(0.8, 1.2)
            seconds_taken = 0.01 if failed else e2e_s
            seen.append(observation(CODE, arm, time_s=time_s, e2e_s=seconds_taken, status=status))
    world.stream += sorted(seen, key=lambda one: one.time_s)
    world.wait(seconds)


def test_class_is_kept_where_both_arms_fail() -> None:
    world = compared()
    fail(world, speculative=(60, 200), control=(60, 200))
    world.look()
    assert world.of().phase is Phase.PROMOTED
    condition = world.condition("ServersSlow")
    assert (condition.status, condition.reason) == ("True", "LimitsBroken")
    assert "of the speculative requests failed, the limit is 0.05 (of the control's" in condition.message
    assert world.of().control.error_rate == 0.3
    world.serve_and_look(200, rounds=6)
    assert world.condition("ServersSlow").status == "False"
    assert world.of().phase is Phase.PROMOTED


def test_class_is_taken_back_where_the_control_fails_less() -> None:
    world = compared()
    fail(world, speculative=(40, 200), control=(4, 200))
    world.look()
    assert world.of().phase is Phase.ROLLED_BACK
    assert world.condition("RolledBack").reason == "ErrorRateAboveThreshold"
    assert "of the speculative requests failed, the limit is 0.05 (of the control's" in world.of().message


@pytest.mark.parametrize(
    ("control", "phase"),
    [((0, 0), Phase.ROLLED_BACK), ((0, 2), Phase.ROLLED_BACK), ((1, 1), Phase.ROLLED_BACK), ((2, 2), Phase.PROMOTED)],
)
def test_most_requests_fail_at_once(control: tuple[int, int], phase: Phase) -> None:
    """A class is kept only where most of the control's requests fail, too."""
    world = compared()
    fail(world, speculative=(20, 25), control=control)
    world.look()
    assert world.of().phase is phase
    if phase is Phase.PROMOTED:
        assert "20 of 25 speculative requests failed, the limit is 0.05 (of the control's 2" in (
            world.condition("ServersSlow").message
        )
        assert [note.type for note in world.notes if note.reason == "LimitsBroken"] == ["Warning"]


def test_limit_alone_decides_where_no_control_was_heard_of() -> None:
    world = compared()
    fail(world, speculative=(60, 200), control=(0, 0))
    world.look()
    assert world.of().phase is Phase.ROLLED_BACK


def test_limit_alone_decides_where_the_policy_has_no_control() -> None:
    steps = [{"share": 0.5, "soakSeconds": 60}, {"share": 1.0, "soakSeconds": 60}]
    world = compared(rollout={"steps": steps}, holdBackShare=0)
    fail(world, speculative=(60, 200), control=(60, 200))
    world.look()
    assert world.of().phase is Phase.ROLLED_BACK


def test_one_failure_is_proof_where_none_is_allowed() -> None:
    world = compared(thresholds={"errorRate": 0})
    fail(world, speculative=(1, 30), control=(1, 30))
    world.look()
    assert world.of().phase is Phase.ROLLED_BACK


def test_errors_act_before_the_control_has_many_answers() -> None:
    """The control is 2 % of the requests: to wait for its answers would take hundreds of failures."""
    world = compared()
    fail(world, speculative=(16, 40), control=(0, 1), seconds=10)
    world.look()
    assert world.of().phase is Phase.ROLLED_BACK


@pytest.mark.parametrize("mode", ["auto", "speculative"])
def test_more_control_is_asked_for_where_it_is_unclear_whose_errors_they_are(mode: str) -> None:
    steps = [{"share": 0.5, "soakSeconds": 60}, {"share": 1.0, "soakSeconds": 60}]
    world = World(raw_policy(thresholds={}, rollout={"steps": steps}, classes=[{"name": "code", "mode": mode}]))
    world.serve_and_look(300, rounds=4)
    assert world.of().hold_back_share == 0.02
    fail(world, speculative=(30, 200), control=(1, 4))
    world.look()
    assert world.of().phase is (Phase.PROMOTED if mode == "auto" else Phase.ENABLED)
    assert world.of().hold_back_share == 0.1
    if mode == "auto":
        said = world.condition("AnalysisConclusive").message
        assert "errorRate: the limit is broken; 4 answers of the control are too few to compare" in said
    fail(world, speculative=(30, 200), control=(0, 22))
    world.look()
    fail(world, speculative=(60, 400), control=(0, 44))
    world.look()
    assert world.of().phase is Phase.ROLLED_BACK
