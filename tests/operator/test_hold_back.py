"""The share of the control: raised while the comparison of a class is open, and back where it is clear."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from slipstream_core.manifest.status import Phase
from slipstream_core.types import Arm
from slipstream_operator.rollout.analysis.facts import GainFacts

from tests.benchmarks import rollback_paired_share
from tests.benchmarks.rollback_paired_share import DEFAULT, FIXED, RAISED, judge, traffic
from tests.operator.policy_world import World, promoted, raw_policy

STEPS = [{"share": 0.5, "soakSeconds": 60}, {"share": 1.0, "soakSeconds": 60}]


def held_back(**spec: Any) -> World:
    """A class that has just been promoted, so that the hold-back is its only control."""
    return promoted(count=300, **{"rollout": {"steps": STEPS}, "thresholds": {"p95Seconds": 1.5}, **spec})


def gain_of(world: World) -> GainFacts:
    return world.ledger.facts(world.now.timestamp())["code/short"].gain


def test_share_is_raised_until_the_gain_is_shown_and_then_lowered() -> None:
    world = held_back()
    assert world.of().hold_back_share == 0.1
    assert world.of().message == (
        "promoted; share 1; 0.1 of it is held back until the comparison with the control is clear"
    )
    world.serve_and_look(40)  # too few answers
    assert world.of().hold_back_share == 0.1
    world.serve_and_look(100)
    assert world.of().hold_back_share == 0.02
    assert world.of().message == "promoted; share 1"
    changed = world.of().hold_back_since
    world.serve_and_look(100)
    assert (world.of().hold_back_share, world.of().hold_back_since) == (0.02, changed)


def test_share_is_raised_again_where_a_loss_is_in_doubt() -> None:
    world = held_back(analysis={"minSamples": 50, "falseAlarmRequests": 1_000_000_000}, margin=0.2)
    world.serve_and_look(150)
    assert world.of().hold_back_share == 0.02
    for _ in range(40):
        world.serve_and_look(5, e2e_s=1.1)
        if world.of().hold_back_share == 0.1:
            break
    assert world.of().hold_back_share == 0.1
    assert world.of().phase is Phase.PROMOTED  # in doubt, and not found


def test_share_is_raised_where_a_broken_limit_is_unclear_and_kept_while_servers_are_slow() -> None:
    world = held_back()
    world.serve_and_look(150)
    assert world.of().hold_back_share == 0.02
    world.serve_and_look(200, arms=(Arm.SPECULATIVE,), e2e_s=1.8)
    assert world.of().hold_back_share == 0.1
    assert "too few to compare" in world.condition("AnalysisConclusive").message


@pytest.mark.parametrize(
    ("spec", "share"),
    [
        ({"holdBackShare": 0}, 0.0),
        ({"holdBackShare": 0, "maxHoldBackShare": 0.1}, 0.0),
        ({"holdBackShare": 0.3}, 0.3),
        ({"maxHoldBackShare": 0.02}, 0.02),
        ({"maxHoldBackShare": 0.25}, 0.25),
        ({"holdBackShare": 0.05, "maxHoldBackShare": 0.06}, 0.06),
        ({"classes": [{"name": "code", "mode": "speculative"}]}, 0.02),
        ({"rollout": {"steps": [{"share": 0.9, "soakSeconds": 60}]}}, 0.02),
        ({"rollout": {"steps": [{"share": 0.95, "soakSeconds": 60}]}}, 0.1),
    ],
)
def test_share_stays_within_the_policy_and_a_rollout_with_control_enough_needs_none(
    spec: dict[str, Any], share: float
) -> None:
    world = World(raw_policy(**{"rollout": {"steps": [{"share": 1.0, "soakSeconds": 60}]}, **spec}))
    world.serve_and_look(10)
    world.look()
    assert world.of().hold_back_share == share


def test_share_stands_still_while_a_kill_switch_is_on_and_over_a_restart() -> None:
    world = held_back()
    since = world.of().hold_back_since
    world.respec(killSwitch=True)
    world.serve_and_look(150)
    assert (world.of().hold_back_share, world.of().hold_back_since) == (0.1, since)
    world.restart()
    world.look()
    assert (world.of().hold_back_share, world.of().hold_back_since) == (0.1, since)


def test_share_that_was_edited_by_hand_is_put_right() -> None:
    world = held_back()
    world.edit(hold_back_share=0.9)
    world.restart()
    world.look()
    assert world.of().hold_back_share == 0.1
    assert "StatusEdited" in world.reasons()


def test_requests_from_before_a_new_share_count_for_no_comparison() -> None:
    world = held_back(thresholds={})
    world.serve_and_look(110)
    assert world.of().hold_back_share == 0.02  # lowered now
    counted = gain_of(world)
    assert min(counted.speculative, counted.control) >= 50
    world.serve(40, seconds=1.0, arms=(Arm.SPECULATIVE,), e2e_s=30.0)  # they began before
    world.serve(5, seconds=1.0, arms=(Arm.SPECULATIVE,), e2e_s=30.0, alarmed=True)  # so did these, with another share
    world.serve_and_look(3, seconds=60.0)
    after = gain_of(world)
    assert (after.speculative - counted.speculative, after.control - counted.control) == (5 + 3, 3)


def test_loss_is_found_sooner_with_the_raised_share_and_none_is_found_where_none_is() -> None:
    random = np.random.default_rng(3)
    some = [traffic(random, loss=0.1, requests=12_000) for _ in range(9)]
    waits = {
        spec: np.median([rollback_paired_share.answers_until(one, spec, 0) for one in some]) for spec in (FIXED, RAISED)
    }
    assert waits[RAISED] < 2_500.0 < waits[FIXED]
    none = [traffic(random, loss=0.0, requests=15_000) for _ in range(10)]
    assert sum(judge(one, RAISED).at > 0 for one in none) == 0


@pytest.mark.parametrize(("before", "begin", "most"), [(0.0, 0, 60.0), (-0.2, 5_000, 90.0)])
def test_large_loss_is_found_within_few_answers_with_the_alarm_of_the_gateways(
    before: float, begin: int, most: float
) -> None:
    """The medians that tests/benchmarks/rollback_paired_share.py measures are 30 and 57 answers."""
    random = np.random.default_rng(3)
    some = [traffic(random, loss=1.0, before=before, begin=begin, requests=begin + 4_000) for _ in range(9)]
    default, fixed = (
        np.median([rollback_paired_share.answers_until(one, spec, begin) for one in some]) for spec in (DEFAULT, FIXED)
    )
    assert default < most < 150.0 < fixed


def test_gain_costs_little_more_control_than_the_policys_share() -> None:
    judged = judge(traffic(np.random.default_rng(4), loss=-0.2, requests=30_000), RAISED)
    assert judged.at == 0
    assert judged.control[-5_000:].count(True) / 5_000 == pytest.approx(0.02, abs=0.01)
    assert judged.control[:1_000].count(True) / 1_000 == pytest.approx(0.1, abs=0.03)
