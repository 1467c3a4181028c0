"""What keeps a class where it is, and what somebody who edits a status cannot do."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from slipstream_core.manifest.check import Problem
from slipstream_core.manifest.status import GatewaysStatus, Phase, SpeculationPolicyStatus
from slipstream_core.types import Arm, LengthBin
from slipstream_operator.rollout.analysis.checkpoint import CheckpointError

from tests.operator.policy_world import CODE, LONG, World, observation, promoted, raw_policy


def at_first_step_with_evidence() -> World:
    """Everything is there for the next step; only the soak is not over."""
    world = World()
    world.look()
    world.serve_and_look(300, seconds=10)
    assert world.of().step == 0
    return world


def test_a_policy_that_is_not_in_force_has_nothing_to_analyse_and_does_not_blame_the_store() -> None:
    world = World()
    world.pair, world.connected = None, None
    world.look()
    world.look()
    assert world.condition("AnalysisConclusive").reason == "NoData"
    assert "StoreUnreachable" not in world.reasons()


@pytest.mark.parametrize("case", ["disabled", "at zero", "not ready"])
def test_no_class_speculates_while_every_request_decodes_plainly(case: str) -> None:
    world = promoted()
    assert world.status.speculating == "1/1"
    if case == "disabled":
        world.respec(enabled=False)
    world.pair_at_zero, world.pair_ready = case == "at zero", case != "not ready"
    world.look()
    assert world.status.speculating == "0/1"


def test_killed_policy_is_neither_promoted_nor_stale_and_goes_on_where_it_was_after_a_new_soak() -> None:
    world = at_first_step_with_evidence()
    world.respec(killSwitch=True)
    world.look()
    assert world.status.state == "Killed"
    assert world.condition("KillSwitchActive").reason == "KilledEverywhere"
    assert world.condition("Progressing").reason == "Held"
    assert world.status.speculating == "0/1"
    world.look(after_s=1e5)
    assert (world.of().phase, world.of().step) == (Phase.PROGRESSING, 0)
    world.respec(killSwitch=None)
    world.look()
    assert world.condition("KillSwitchActive").status == "False"
    world.look(after_s=59)
    assert world.of().step == 0
    world.look(after_s=1)
    assert world.of().step == 1
    assert [reason for reason in world.reasons() if reason.startswith("Kill")] == ["Killed", "KillLanded", "KillLifted"]


def test_kill_of_the_pair_shows_and_counts_gateways() -> None:
    world = World()
    world.pair_killed = True
    world.gateways = GatewaysStatus(synced=1, total=2, oldest_generation=3)
    world.look()
    condition = world.condition("KillSwitchActive")
    assert (condition.status, condition.reason) == ("True", "Killed")
    assert "1 of 2 gateways" in condition.message
    assert world.status.gateways.oldest_generation == 3


@pytest.mark.parametrize("case", ["not ready", "at zero", "disabled", "invalid", "no pair", "conflict"])
def test_whatever_keeps_a_policy_from_governing_holds_its_classes(case: str) -> None:
    world = at_first_step_with_evidence()
    reason = {
        "not ready": "PairNotReady",
        "at zero": "PairScaledToZero",
        "disabled": "Disabled",
        "invalid": "InvalidSpec",
        "no pair": "Unresolved",
        "conflict": "Unresolved",
    }[case]
    if case == "not ready":
        world.pair_ready = False
    elif case == "at zero":
        world.pair_at_zero = True
    elif case == "disabled":
        world.respec(enabled=False)
    elif case == "invalid":
        world.respec(margin="much")
        world.problems = (Problem("spec.margin", "must be a number, got 'much'"),)
    elif case == "no pair":
        world.pair = None
    else:
        world.problems = (Problem("spec.pair", "ModelPair acme already has SpeculationPolicy older"),)
    for _ in range(3):
        world.look(after_s=1e5)
    assert (world.of().phase, world.of().step) == (Phase.PROGRESSING, 0)
    is_at_rest = str(case in ("at zero", "disabled"))
    assert (world.condition("Ready").status, world.condition("Ready").reason) == (is_at_rest, reason)
    assert (world.condition("Held").status, world.condition("Held").reason) == ("True", reason)
    assert world.reasons()[-1] == reason
    if case in ("no pair", "conflict"):
        assert world.condition("ResolvedRefs").status == "False"


@pytest.mark.parametrize("case", ["disabled", "at zero"])
def test_a_class_has_a_new_soak_after_a_policy_was_at_rest(case: str) -> None:
    """Ready is True all the time, so the hold has a condition of its own."""
    world = at_first_step_with_evidence()
    for is_at_rest in (True, False):
        world.pair_at_zero = is_at_rest and case == "at zero"
        if case == "disabled":
            world.respec(enabled=not is_at_rest)
        world.look(after_s=1e4)
    assert (world.condition("Held").status, world.of().step) == ("False", 0)
    world.serve_and_look(300, seconds=59)
    assert world.of().step == 0
    world.look(after_s=1)
    assert world.of().step == 1


def test_broken_spec_leaves_step_and_share_as_they_are() -> None:
    world = World()
    world.serve_and_look(60)
    world.serve_and_look(60)
    right = (world.of().phase, world.of().step, world.of().share)
    assert right == (Phase.PROGRESSING, 1, 0.5)
    world.respec(rollout={"steps": []})
    world.problems = (Problem("spec.rollout.steps", "must have at least 1 entry, got 0"),)
    for _ in range(2):
        world.restart()
        world.look()
        assert (world.of().phase, world.of().step, world.of().share) == right
    assert "StatusEdited" not in world.reasons()


def test_kill_switch_of_a_broken_spec_counts() -> None:
    world = promoted()
    world.respec(rollout="broken", killSwitch=True)
    world.look()
    assert world.condition("Accepted").status == "False"
    assert world.condition("KillSwitchActive").status == "True"


def test_every_rollback_of_many_at_once_is_told() -> None:
    names = [f"{task}/{length}" for task in ("code", "rewriting", "translation", "extraction") for length in LengthBin]
    world = World()
    for name in names:
        world.serve(60, name)
    world.look()
    for name in names:
        world.serve(150, name, acceptance=0.4)
    world.look()
    assert world.reasons().count("AcceptanceBelowThreshold") == len(names) == 12
    assert len(world.status.decisions) == 10


def test_evidence_takes_a_class_back_even_while_the_policy_is_broken() -> None:
    world = promoted()
    world.respec(margin="much")
    world.problems = (Problem("spec.margin", "must be a number, got 'much'"),)
    world.look()
    world.serve_and_look(150, acceptance=0.5)
    assert world.of().phase is Phase.ROLLED_BACK


def test_rollback_outlives_a_pair_that_is_gone_for_a_while() -> None:
    world = promoted()
    world.serve_and_look(150, acceptance=0.5)
    pair, world.pair = world.pair, None
    world.look()
    world.pair = pair
    world.look()
    assert world.of().phase is Phase.ROLLED_BACK


def test_store_that_cannot_be_reached_holds_and_says_so() -> None:
    world = at_first_step_with_evidence()
    world.wait(60)
    world.connected = False
    world.look()
    assert world.of().step == 0
    condition = world.condition("AnalysisConclusive")
    assert (condition.status, condition.reason) == ("False", "StoreUnreachable")
    assert "the outcome store" in world.of().message
    world.connected = True
    world.look()
    assert world.of().step == 1


def test_silence_beyond_stale_after_decodes_plainly_until_outcomes_flow_again() -> None:
    world = promoted()
    world.look(after_s=world.next_look_s - 1)
    assert world.of().phase is Phase.PROMOTED
    world.look(after_s=1)
    assert (world.of().phase, world.of().share) == (Phase.STALE, 0.0)
    assert world.condition("AnalysisConclusive").reason == "Stale"
    assert (world.status.state, world.notes[-1].reason) == ("Stale", "StaleAfter")
    world.wait(10)
    world.tell(observation(arm=Arm.PLAIN, time_s=world.now.timestamp()))
    world.look()
    assert (world.of().phase, world.of().step) == (Phase.PROGRESSING, 0)


@pytest.mark.parametrize("fail_mode", ["plain", "hold"])
def test_a_class_that_nobody_uses_any_more_is_not_the_state_of_the_policy(fail_mode: str) -> None:
    world = promoted(rollback={"staleAfterSeconds": 3600, "failMode": fail_mode})
    world.serve(2, LONG)
    world.serve_and_look(60, rounds=30, seconds=300)
    assert world.of(LONG).phase is (Phase.STALE if fail_mode == "plain" else Phase.PROGRESSING)
    assert world.of().phase is Phase.PROMOTED
    condition = world.condition("AnalysisConclusive")
    assert (condition.status, condition.reason) == ("True", "Conclusive")
    assert f"no outcomes for 3600 s of {LONG}" in condition.message
    assert world.status.state == ("Promoted" if fail_mode == "plain" else "Progressing")


def test_restart_alone_wakes_no_stale_class() -> None:
    world = promoted()
    world.look(after_s=4_000)
    world.wait(10)
    world.restart()
    world.look()
    world.look()
    assert world.of().phase is Phase.STALE


def test_class_that_falls_silent_between_bursts_is_judged_by_all_of_them() -> None:
    world = World(raw_policy(rollback={"staleAfterSeconds": 60}))
    world.look()
    answers, rounds = 0, 0
    while not (world.status.classes and world.of().phase is Phase.ROLLED_BACK):
        rounds += 1
        assert rounds <= 60
        for arm in (Arm.PLAIN, Arm.SPECULATIVE, Arm.SPECULATIVE):
            world.tell(observation(arm=arm, time_s=world.now.timestamp(), acceptance=0.05, e2e_s=0.1))
            world.look(after_s=1)
            answers += arm is Arm.SPECULATIVE
        world.look(after_s=61)
    assert 50 <= answers < 60
    assert world.condition("RolledBack").reason == "AcceptanceBelowThreshold"
    assert world.of().last_decision.samples >= 50


def test_a_class_with_a_visitor_now_and_then_is_no_news() -> None:
    world = World(raw_policy(rollback={"staleAfterSeconds": 60}))
    for _ in range(40):
        world.tell(observation(arm=Arm.PLAIN, time_s=world.now.timestamp()))
        world.look()
        world.look(after_s=61)
        assert world.of().phase is Phase.STALE
        world.wait(1)
    assert world.reasons().count("StaleAfter") == 6  # the 1st, 2nd, 4th, 8th, 16th and 32nd
    assert world.reasons().count("OutcomesAgain") == 6
    assert world.of().last_decision.observed == 40.0


def test_silence_after_a_step_forward_is_news_again() -> None:
    world = promoted()
    for _ in range(2):
        world.look(after_s=4000)
        world.tell(observation(arm=Arm.PLAIN, time_s=world.now.timestamp() + 1))
        world.look(after_s=2)
        world.serve_and_look(100, rounds=3)
        assert world.of().phase is Phase.PROMOTED
    assert [world.reasons().count(reason) for reason in ("StaleAfter", "OutcomesAgain")] == [2, 2]


def test_retry_waits_until_somebody_can_see_how_it_goes() -> None:
    world = promoted()
    world.serve_and_look(150, acceptance=0.5)
    world.wait(601)
    world.restart()
    assert [one.phase for one in world.plan().status.classes] == [Phase.ROLLED_BACK]
    world.look()
    assert world.of().phase is Phase.PROGRESSING


def test_nothing_counts_while_the_servers_are_rolled_to_a_new_spec() -> None:
    world = promoted()
    world.paused = True
    world.respec(margin=0.03)
    world.look()
    for acceptance in (0.1, 0.72):
        world.serve_and_look(300, acceptance=acceptance)
    assert (world.of().phase, world.of().step) == (Phase.PROGRESSING, 0)
    assert "0 answers with drafts of 50" in world.of().message


@pytest.mark.parametrize("restart", ["never", "during", "after"])
def test_after_the_roll_only_requests_count_that_began_since(restart: str) -> None:
    world = promoted()
    world.paused = True
    world.respec(margin=0.03)
    world.look()
    world.serve_and_look(100)
    if restart == "during":
        world.restart()
        world.look()
    world.paused = False
    world.look()
    if restart == "after":
        world.look()
        world.restart()
    for _ in range(100):
        world.tell(observation(time_s=world.now.timestamp() + 5, e2e_s=6.0, acceptance=0.1))
    world.look(after_s=5)
    assert {guard.seen for guard in world.ledger.facts(world.now.timestamp())[CODE].guards} == {0}
    world.serve_and_look(60)
    assert world.of().step == 1


def test_fail_mode_hold_leaves_a_silent_class_and_says_that_nothing_is_known() -> None:
    world = promoted(rollback={"failMode": "hold", "staleAfterSeconds": 600})
    world.look(after_s=601)
    assert world.of().phase is Phase.PROMOTED
    assert world.condition("AnalysisConclusive").reason == "NoData"


def test_silent_class_with_fail_mode_hold_is_not_promoted_by_what_it_had() -> None:
    world = World(raw_policy(rollback={"failMode": "hold", "staleAfterSeconds": 30}))
    world.look()
    world.serve(300, seconds=10)
    world.look(after_s=100)
    world.look()
    assert world.of().step == 0


def test_clock_that_goes_back_moves_nothing_until_time_has_passed_again() -> None:
    world = at_first_step_with_evidence()
    world.look(after_s=60)
    assert world.of().step == 1
    since = world.of().since
    world.wait(-3600)
    world.serve_and_look(300)
    assert (world.of().step, world.of().since) == (1, since)
    world.wait(3600)
    world.serve_and_look(300)
    assert world.of().phase is Phase.PROMOTED


def test_gateway_with_a_clock_of_next_year_neither_fills_the_window_nor_keeps_a_class_fresh() -> None:
    world = World()
    world.serve(30)
    for _ in range(30):
        world.tell(observation(time_s=world.now.timestamp() + 3e7, status="upstream_failed", e2e_s=0.1))
    world.look()
    assert world.of().phase is Phase.ROLLED_BACK
    assert world.of().last_decision.samples == 60


@pytest.mark.parametrize("restarted", [False, True])
def test_status_edited_by_hand_is_put_right(restarted: bool) -> None:
    world = promoted()
    world.serve_and_look(150, acceptance=0.5)
    right = world.of()
    world.edit(phase=Phase.PROMOTED, share=1.0, step=1, retries=0)
    if restarted:
        world.restart()
    world.look()
    assert world.of() == right
    assert world.notes[-1].reason == "StatusEdited"


@pytest.mark.parametrize(
    ("edit", "restarted"),
    [
        pytest.param(lambda status: None, False, id="deleted"),
        pytest.param(lambda status: replace(status, spec_hash="0" * 16, retry_token="x"), True, id="other spec"),
        pytest.param(lambda status: SpeculationPolicyStatus(checkpoint=status.checkpoint), True, id="checkpoint only"),
    ],
)
def test_rollback_outlives_an_edited_status(
    edit: Callable[[Any], SpeculationPolicyStatus | None], restarted: bool
) -> None:
    world = promoted()
    world.serve_and_look(150, acceptance=0.5)
    if restarted:
        world.restart()
    world.status = edit(world.status)
    world.look()
    assert world.of().phase is Phase.ROLLED_BACK


def test_evidence_from_before_a_retry_is_not_held_against_it_again_when_the_checkpoint_is_lost() -> None:
    world = promoted()
    world.serve_and_look(150, acceptance=0.5)
    world.look(after_s=600)
    world.status, world.archive = replace(world.status, checkpoint=""), ""
    world.restart()
    world.look()
    world.look()
    assert (world.of().phase, world.of().retries) == (Phase.PROGRESSING, 1)


@pytest.mark.parametrize("damage", ["text", "bit", "version", "empty"])
def test_damaged_checkpoint_is_refused_and_nothing_stands_above_the_first_step(damage: str) -> None:
    world = promoted()
    data = base64.b64decode(world.archive)
    world.serve(60, LONG)
    text = {
        "text": "not base64!",
        "bit": base64.b64encode(data[:-1] + bytes([data[-1] ^ 1])).decode(),
        "version": base64.b64encode(data[:8] + b"\x09" + data[9:]).decode(),
        "empty": base64.b64encode(data[:8]).decode(),
    }[damage]
    with pytest.raises(CheckpointError):
        world.ledger.restore(text)
    world.status, world.archive = replace(world.status, checkpoint=""), ""
    world.stream.clear()
    world.restart()
    world.look()
    assert (world.of().phase, world.of().step, world.of().share) == (Phase.PROGRESSING, 0, 0.1)


def test_evidence_older_than_the_status_changes_no_class_and_counts_nothing_twice() -> None:
    """The operator ended between the two writes, or the second one failed."""
    world = World()
    world.serve_and_look(100)
    older = world.archive
    world.serve_and_look(100, rounds=2)
    before = world.of()
    world.archive = older
    world.restart()
    world.look()
    after = world.of()
    assert (before.phase, after.phase, after.since) == (Phase.PROMOTED, Phase.PROMOTED, before.since)
    assert after.speculative.samples == before.speculative.samples
    assert "StatusEdited" not in world.reasons()
    world.serve_and_look(150, acceptance=0.5)
    assert world.of().phase is Phase.ROLLED_BACK


def test_short_checkpoint_alone_is_enough_for_the_phases() -> None:
    """Where the evidence cannot be stored, and for earlier versions of the operator."""
    world = promoted()
    world.serve_and_look(30)
    before, world.archive = world.of(), ""
    world.restart()
    world.look()
    assert (world.of().phase, world.of().since) == (Phase.PROMOTED, before.since)
    assert world.of().speculative.samples == 30, "those since its promotion are read from the store again"
    assert len(world.status.checkpoint) < 400


def test_without_a_checkpoint_a_decision_is_enough_for_a_rollback_to_stay() -> None:
    world = promoted()
    world.serve_and_look(150, acceptance=0.5)
    world.edit(phase=Phase.PROMOTED, share=1.0)
    world.status, world.archive = replace(world.status, checkpoint=""), ""
    world.stream.clear()
    world.restart()
    world.look()
    assert (world.of().phase, world.of().retry_at) == (Phase.ROLLED_BACK, None)


def test_failed_write_is_decided_again_and_told_once() -> None:
    world = promoted()
    told = len(world.notes)
    world.serve(150, acceptance=0.5)
    first = world.look(stores=False)
    world.look(after_s=7)
    assert world.of().phase is Phase.ROLLED_BACK
    assert [note.reason for note in world.notes[told:]] == [note.reason for note in first.notes]


def test_steady_state_says_the_same_again() -> None:
    world = promoted()
    world.look()
    before = world.status
    world.look()
    assert world.status == before
    assert world.ledger.checkpoint(world.status) == world.ledger.checkpoint(world.status)


def test_unknown_fields_are_named_once() -> None:
    world = World()
    world.ignored = ("spec.colour",)
    world.look()
    world.look()
    assert world.condition("Ready").message.endswith("are ignored: spec.colour")
    assert world.reasons() == ["UnknownFieldsIgnored"]


def test_nothing_seen_yet_is_said() -> None:
    world = World()
    world.look()
    assert world.status.classes == ()
    assert world.status.state == "Waiting"
    assert world.condition("AnalysisConclusive").reason == "NoData"
    assert world.notes == []
    assert CODE not in world.ledger.facts(0.0)
