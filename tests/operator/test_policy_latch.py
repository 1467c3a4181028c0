"""What a class was judged to be outlives deleted statuses, other operators, restarts and servers that are replaced."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from slipstream_core.manifest.check import Problem
from slipstream_core.manifest.status import Phase
from slipstream_operator.cluster.resources import Kind, ObjectKey
from slipstream_operator.rollout.analysis.checkpoint import sealed_standings
from slipstream_operator.rollout.evidence import CollectedEvidence
from slipstream_operator.types import PolicyPlan

from tests.operator.policy_world import CODE, PAIR_KEY, World, policy_of, promoted, rolled_back

KEY = ObjectKey(Kind.SPECULATION_POLICY, "team", "careful")


def other_operator(world: World) -> World:
    """Another one before the same API server and the same Redis, which has started just now."""
    other = World(world.raw)
    other.stream, other.now, other.status, other.archive = world.stream, world.now, world.status, world.archive
    other.restart()
    other.look()
    return other


@pytest.mark.parametrize("case", ["no pair", "invalid policy"])
def test_rollback_outlives_a_status_that_is_deleted_while_the_pair_or_the_policy_is_refused(case: str) -> None:
    world = rolled_back()
    pair, raw = world.pair, world.raw
    if case == "no pair":
        world.pair = None
    else:
        world.respec(margin="much")
        world.problems = (Problem("spec.margin", "must be a number, got 'much'"),)
    world.look()
    world.status = None
    world.look()
    assert world.of().phase is Phase.ROLLED_BACK
    world.pair, world.raw, world.problems = pair, raw, ()
    world.look()
    assert world.of().phase is Phase.ROLLED_BACK
    assert "NewSpec" not in world.reasons()


def test_class_of_a_refused_pair_is_taken_back() -> None:
    world = promoted()
    world.pair, world.problems = None, (Problem("spec.pair", "ModelPair acme is refused, see its status"),)
    world.look()
    world.serve_and_look(300, acceptance=0.1)
    assert world.of().phase is Phase.ROLLED_BACK


def test_rollback_by_another_operator_is_not_lifted_by_one_that_has_not_seen_why() -> None:
    halted = promoted()
    other = other_operator(halted)
    other.serve_and_look(300, acceptance=0.1)
    assert other.of().phase is Phase.ROLLED_BACK
    halted.now, halted.status = other.now, other.status
    halted.connected = False
    for _ in range(3):
        halted.look()
        assert halted.of().phase is Phase.ROLLED_BACK
        assert halted.of().retry_at == other.of().retry_at
    halted.connected = True
    halted.look()
    other.status = halted.status
    other.look()
    assert halted.of() == other.of()


def test_clock_that_is_behind_does_not_keep_a_rollback_from_another_operator_who_is_ahead() -> None:
    ahead = promoted()
    behind = other_operator(ahead)
    ahead.wait(3600)
    ahead.status = msgspec.structs.replace(ahead.status, classes=())
    ahead.restart()
    behind.serve_and_look(300, acceptance=0.1)
    assert behind.of().phase is Phase.ROLLED_BACK
    ahead.ledger = promoted().ledger  # it remembers a promotion
    ahead.followed, ahead.connected, ahead.status = True, False, behind.status
    ahead.look()
    assert ahead.of().phase is Phase.ROLLED_BACK


def test_later_attempt_by_another_operator_is_gone_on_with_and_not_judged_by_what_was_before() -> None:
    halted = rolled_back()
    other = other_operator(halted)
    other.look(after_s=700)
    assert (other.of().phase, other.of().retries) == (Phase.PROGRESSING, 1)
    halted.now, halted.status = other.now, other.status
    for _ in range(2):
        halted.look()
        assert (halted.of().phase, halted.of().retries) == (Phase.PROGRESSING, 1)


def test_old_checkpoint_that_is_pasted_back_lifts_nothing() -> None:
    world = promoted()
    good = world.status
    world.serve_and_look(300, acceptance=0.1)
    world.status = good
    world.look()
    assert world.of().phase is Phase.ROLLED_BACK


def test_checkpoint_of_another_pair_promotes_nothing() -> None:
    text = promoted().status.checkpoint
    assert sealed_standings(text, PAIR_KEY)[CODE].phase is Phase.PROMOTED
    assert sealed_standings(text, "team/other") == {}
    thief = World()
    thief.raw["spec"]["pair"] = "other"
    thief.status = promoted().status
    thief.look()
    assert thief.of().step == 0
    assert thief.of().phase is Phase.PROGRESSING


def test_no_attempt_is_made_where_nothing_was_ever_read() -> None:
    world = rolled_back()
    world.wait(700)
    evidence = CollectedEvidence(None, clock_s=world.now.timestamp)
    evidence.open(KEY, policy_of(world.raw), pair_key=PAIR_KEY, checkpoint=world.status.checkpoint)
    world._facts = lambda: evidence.facts(KEY)  # type: ignore[method-assign]
    world.connected = evidence.is_connected(KEY)
    [one] = world.plan().status.classes
    assert (one.phase, one.retries) == (Phase.ROLLED_BACK, 0)


def serve_until_still(world: World, rounds: int = 5, **outcomes: Any) -> list[PolicyPlan]:
    plans = []
    for _ in range(rounds):
        world.serve(100, **outcomes)
        plans.append(world.look())
    return plans


def test_old_servers_promote_no_new_spec_and_their_faults_are_not_held_against_it() -> None:
    world = promoted()
    world.respec(margin=0.06)
    world.paused, world.servers_current = True, False
    plans = serve_until_still(world, acceptance=0.1)
    assert (world.of().phase, world.of().step) == (Phase.PROGRESSING, 0)
    assert world.condition("Progressing").message.endswith("held: servers are being brought to this spec")
    stills = [msgspec.structs.replace(one, message="") for plan in plans[1:] for one in plan.status.classes]
    assert all((one.since, one.phase) == (stills[0].since, stills[0].phase) for one in stills)
    assert plans[-1].status.conditions == plans[-2].status.conditions
    world.paused, world.servers_current = False, True
    world.look()
    resumed = world.of().since
    world.serve_and_look(100, seconds=30)
    assert (world.of().step, world.of().since) == (0, resumed)  # its soak has begun with the servers
    world.serve_and_look(100, seconds=40)
    assert world.of().step == 1


def test_old_servers_of_a_stuck_rollout_are_guarded_and_promote_nothing() -> None:
    world = promoted()
    world.respec(margin=0.06)
    world.servers_current = False
    serve_until_still(world)
    assert (world.of().phase, world.of().step) == (Phase.PROGRESSING, 0)
    serve_until_still(world, acceptance=0.1)
    assert world.of().phase is Phase.ROLLED_BACK


def test_promoted_class_stays_while_servers_of_the_same_spec_are_replaced() -> None:
    world = promoted()
    before = world.of()
    for current in (False, True):
        world.paused, world.servers_current = not current, current
        serve_until_still(world, rounds=2)
        assert (world.of().phase, world.of().since) == (Phase.PROMOTED, before.since)
