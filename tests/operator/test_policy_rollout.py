"""A class on its way up, and back down: every step with its evidence."""

from __future__ import annotations

import base64
import hashlib
import zlib
from typing import Any

import msgspec
import pytest
from slipstream_core.manifest.fingerprint import SpecHashes
from slipstream_core.manifest.status import Phase
from slipstream_core.types import Arm, Reason
from slipstream_operator.rollout.analysis.checkpoint import sealed_standings
from slipstream_operator.rollout.analysis.facts import Verdict
from slipstream_operator.rollout.analysis.metrics import Metric

from tests.operator.policy_world import (
    CODE,
    LONG,
    PAIR_KEY,
    World,
    observation,
    policy_of,
    promoted,
    raw_policy,
    rolled_back,
)


def test_class_is_seen_then_promoted_step_by_step() -> None:
    world = World()
    world.serve_and_look(60)
    assert (world.of().phase, world.of().share, world.of().step) == (Phase.PROGRESSING, 0.1, 0)
    world.serve_and_look(60)
    assert (world.of().share, world.of().step) == (0.5, 1)
    world.serve_and_look(60)
    assert (world.of().phase, world.of().share) == (Phase.PROMOTED, 0.5)
    assert [decision.rule for decision in world.status.decisions] == ["Promote", "Promote"]
    decision = world.of().last_decision
    assert decision.metric == "e2eChange"
    assert decision.observed < decision.bound < decision.threshold < 0.0
    assert world.condition("Progressing").reason == "Complete"
    assert world.status.state == "Promoted"


def whole_rollout(*shares: float) -> World:
    steps = [{"share": share, "soakSeconds": 60} for share in shares]
    world = World(raw_policy(rollout={"steps": steps}))
    world.serve_and_look(1)  # the class begins when something is heard of it first
    return world


def test_the_step_that_leaves_no_control_rests_on_the_gain_of_the_one_before() -> None:
    world = whole_rollout(0.5, 1.0)
    world.serve_and_look(60)
    assert (world.of().share, world.of().step) == (1.0, 1)
    world.serve_and_look(60, arms=(Arm.SPECULATIVE,))
    assert world.of().phase is Phase.PROMOTED
    assert "the gain was shown at the previous step" in world.of().last_decision.message
    assert world.of().last_decision.bound is None


def test_a_control_that_speaks_against_the_gain_holds_the_last_step() -> None:
    world = whole_rollout(0.5, 1.0)
    world.serve_and_look(60)
    world.serve_and_look(60, e2e_s=1.0)
    assert (world.of().phase, world.of().step) == (Phase.PROGRESSING, 1)
    assert "a gain: at most" in world.of().message


def test_a_rollout_of_one_step_has_to_show_its_gain_all_the_same() -> None:
    world = whole_rollout(1.0)
    world.serve_and_look(60, arms=(Arm.SPECULATIVE,))
    assert (world.of().phase, world.of().step) == (Phase.PROGRESSING, 0)
    assert "61 speculative and 1 control answers of 50 each" in world.of().message


def test_step_lasts_as_long_as_its_soak_whatever_the_evidence() -> None:
    world = World()
    world.look()
    world.serve_and_look(500, seconds=10)
    world.look(after_s=59)
    assert world.of().step == 0
    assert "the soak until 2026-01-01T00:01:10Z" in world.of().message
    assert world.next_look_s == 1.0
    world.look(after_s=1)
    assert world.of().step == 1


def test_too_few_answers_hold_the_class_and_are_named() -> None:
    world = World()
    world.serve(49)
    for _ in range(3):
        world.look(after_s=600)
    assert world.of().step == 0
    condition = world.condition("AnalysisConclusive")
    assert (condition.status, condition.reason) == ("False", "InsufficientSamples")
    assert "code/short has acceptanceFloor: 49 answers with drafts of 50; 49 speculative and 49 control" in (
        condition.message
    )
    assert "control answers of 50 each (about 24 s more at the present rate)" in condition.message
    assert "(about 24 s more at the present rate)" in world.of().message


def test_missing_answers_that_never_come_say_since_when() -> None:
    world = World()
    world.serve_and_look(20, arms=(Arm.SPECULATIVE,))
    world.look(after_s=2400)
    assert "0 control answers of 50 each (since 2026-01-01T00:01:00Z)" in world.of().message


def test_answers_of_an_earlier_step_do_not_count_for_the_next() -> None:
    world = World()
    world.serve_and_look(500)
    world.look(after_s=60)
    assert world.of().step == 1
    world.look(after_s=600)
    assert world.of().step == 1
    assert "0 speculative and 0 control answers of 50 each" in world.of().message


def test_requests_that_began_before_the_step_do_not_count_for_it() -> None:
    world = World()
    world.serve_and_look(60)
    world.look(after_s=60)
    late = world.now.timestamp() + 5.0
    for _ in range(60):
        world.tell(observation(time_s=late, e2e_s=10.0))
        world.tell(observation(arm=Arm.CONTROL, time_s=late, e2e_s=10.0))
    world.look(after_s=60)
    assert world.of().step == 1
    assert "0 speculative and 0 control" in world.of().message


def test_no_gain_no_step() -> None:
    world = World()
    world.look()
    world.serve_and_look(200, e2e_s=1.0, rounds=5)
    assert world.of().step == 0
    assert "a gain: at most" in world.of().message


def test_threshold_without_data_holds_the_class_as_long_as_data_may_come() -> None:
    world = World(raw_policy(thresholds={"acceptanceFloor": 0.65, "ttftP95Seconds": 1.0}))
    world.serve_and_look(70, ttft_s=None, rounds=2)
    assert world.of().step == 0
    assert "ttftP95Seconds: 0 streamed answers of 50" in world.of().message


def test_class_is_promoted_without_a_guard_that_nothing_in_it_can_be_judged_by_and_says_so() -> None:
    world = World(raw_policy(thresholds={"acceptanceFloor": 0.65, "ttftP95Seconds": 1.0}))
    world.serve_and_look(100, ttft_s=None, rounds=4)
    assert world.of().phase is Phase.PROMOTED
    named = "not applicable, without data: ttftP95Seconds"
    for message in (
        world.of().message,
        world.of().last_decision.message,
        world.condition("AnalysisConclusive").message,
    ):
        assert message.endswith(named)
    world.serve_and_look(100, ttft_s=2.0, e2e_s=3.0)
    assert world.condition("RolledBack").reason == "TtftAboveThreshold"


def test_answers_with_a_price_wait_for_the_controls_cost() -> None:
    world = World(raw_policy(thresholds={"costIncrease": 0.1}))
    world.serve_and_look(200, arms=(Arm.SPECULATIVE,), rounds=2)
    assert "costIncrease: 0 answers of either arm with a price of 50" in world.of().message
    assert "not applicable" not in world.of().message


def test_exploration_client_choice_and_other_pairs_are_no_evidence() -> None:
    world = World()
    for reason in (Reason.EXPLORATION, Reason.CLIENT_ASKED):
        world.serve(200, reason=reason, acceptance=0.1)
    world.serve_and_look(200, pair="team/other", acceptance=0.1)
    assert world.of().phase is Phase.PROGRESSING
    assert world.of().speculative.samples == 0


def test_collapse_of_one_class_rolls_back_that_class_alone_and_says_why() -> None:
    world = World()
    for _ in range(3):
        world.serve(100)
        world.serve_and_look(100, LONG)
    assert world.of().phase is Phase.PROMOTED
    world.serve(150, acceptance=0.5)
    world.serve_and_look(100, LONG)
    assert (world.of().phase, world.of().share) == (Phase.ROLLED_BACK, 0.0)
    assert world.of(LONG).phase is Phase.PROMOTED
    decision = world.of().last_decision
    assert (decision.metric, decision.observed, decision.threshold) == ("acceptanceFloor", 0.5, 0.65)
    assert decision.bound > 20_000
    assert 30 < decision.samples < 150
    condition = world.condition("RolledBack")
    assert (condition.status, condition.reason) == ("True", "AcceptanceBelowThreshold")
    assert condition.message.startswith("code/short: acceptance 0.500, floor 0.65, over the last")
    assert (world.status.state, world.status.reason) == ("RolledBack", "AcceptanceBelowThreshold")
    assert world.status.speculating == "1/2"
    assert world.notes[-1].reason == "AcceptanceBelowThreshold"
    assert world.notes[-1].type == "Warning"


@pytest.mark.parametrize(
    ("thresholds", "outcome", "reason", "words"),
    [
        ({"p95Seconds": 1.5}, {"e2e_s": 1.8}, "LatencyAboveThreshold", "over the last"),
        ({"ttftP95Seconds": 0.2}, {"ttft_s": 0.3}, "TtftAboveThreshold", "over the last"),
        ({"costIncrease": 0.05}, {"price_per_gpu_hour": 18.0}, "CostAboveThreshold", "the limit is +5.0% ("),
    ],
)
def test_each_threshold_has_its_guard(
    thresholds: dict[str, float], outcome: dict[str, float], reason: str, words: str
) -> None:
    world = promoted(count=300, thresholds=thresholds)
    world.serve_and_look(200, **outcome)
    assert world.condition("RolledBack").reason == reason
    assert words in world.of().message


def test_higher_cost_with_a_small_control_takes_the_class_back_and_says_by_how_much() -> None:
    """Speculation is faster all the time: only its cost speaks against it."""
    world = promoted(count=300, thresholds={"costIncrease": 0.05})
    for _ in range(150):
        world.serve(19, arms=(Arm.SPECULATIVE,), priced_s=1.48 * world.random.uniform(0.8, 1.2))
        world.serve(1, arms=(Arm.CONTROL,))
    world.look()
    decision = world.of().last_decision
    assert world.condition("RolledBack").reason == "CostAboveThreshold"
    assert (decision.metric, decision.threshold, decision.bound) == ("costIncrease", 0.05, None)
    assert decision.observed == pytest.approx(0.48, abs=0.15)
    assert world.of().message.startswith("speculative answers cost +")
    assert "compared with the control's of the same period, the limit is +5.0%" in world.of().message


def test_equal_cost_with_a_small_control_takes_nothing_back() -> None:
    world = World(raw_policy(thresholds={"costIncrease": 0.05}))
    for _ in range(130):
        world.serve(19, arms=(Arm.SPECULATIVE,), priced_s=world.random.uniform(0.8, 1.2))
        world.serve_and_look(1, arms=(Arm.CONTROL,))
    assert world.of().phase is Phase.PROMOTED
    facts = {guard.metric: guard for guard in world.ledger.facts(world.now.timestamp())[CODE].guards}
    assert facts[Metric.COST].verdict is Verdict.PASS


def test_parity_guard_counts_replays() -> None:
    world = World(raw_policy(thresholds={"parityLoss": 0.02}))
    world.look()
    for index in range(60):
        parity = "mismatch" if index % 2 else "match"
        world.tell(observation(time_s=world.now.timestamp() + 1, e2e_s=0.5, status="parity", parity=parity))
    world.look(after_s=10)
    assert world.condition("RolledBack").reason == "QualityParityFailed"


def test_parity_loss_of_zero_is_broken_by_the_first_mismatch() -> None:
    world = World(raw_policy(thresholds={"parityLoss": 0.0}))
    at = {"time_s": world.now.timestamp() + 1, "e2e_s": 0.5, "status": "parity"}
    world.tell(observation(**at, parity="match"))
    world.look(after_s=10)
    assert world.of().phase is Phase.PROGRESSING
    world.tell(observation(**at, parity="mismatch"))
    world.look()
    assert world.of().phase is Phase.ROLLED_BACK


def check(world: World, result: str, count: int = 1) -> None:
    for _ in range(count):
        world.tell(observation(time_s=world.now.timestamp(), e2e_s=0.5, status="parity", parity=result))


def guarded() -> World:
    """A class that was promoted with checks of its answers."""
    world = World(raw_policy(thresholds={"parityLoss": 0.0}))
    world.look()
    for _ in range(3):
        world.serve(100)
        check(world, "match")
        world.look()
    assert world.of().phase is Phase.PROMOTED
    return world


def test_a_class_whose_answers_are_not_checked_waits_and_goes_back_step_by_step() -> None:
    world = guarded()
    check(world, "missed", 9)
    world.serve_and_look(60, seconds=700)
    assert world.condition("AnalysisConclusive").reason == "Conclusive", "nine may be chance"
    check(world, "missed")
    world.serve_and_look(10, seconds=1)
    condition = world.condition("AnalysisConclusive")
    assert (condition.status, condition.reason) == ("False", "ParityUnknown")
    assert "no answer was compared with a plain one since 2026" in condition.message
    assert "10 that were drawn for it were not decoded again" in condition.message
    assert world.of().phase is Phase.PROMOTED
    world.serve_and_look(60, seconds=600)
    assert (world.of().phase, world.of().step, world.of().share) == (Phase.PROGRESSING, 0, 0.1)
    assert world.of().last_decision.rule == "ParityUnknown"
    world.serve_and_look(200, seconds=2000)
    assert (world.of().phase, world.of().step) == (Phase.PROGRESSING, 0), "there is no step before the first"
    check(world, "match")
    world.serve_and_look(60)
    assert world.of().step == 1
    assert world.condition("AnalysisConclusive").reason != "ParityUnknown"


def test_a_class_without_checks_is_not_promoted_if_there_are_answers_to_check() -> None:
    worlds = [World(raw_policy(thresholds={"parityLoss": 0.0})) for _ in range(2)]
    for world, missed in zip(worlds, (0, 10), strict=True):
        world.look()
        check(world, "missed", missed)
        world.serve_and_look(200, rounds=4)
    assert [world.of().phase for world in worlds] == [Phase.PROMOTED, Phase.PROGRESSING]
    assert "parityLoss: no answer was compared with a plain one; 10 that" in worlds[1].of().message


def test_missed_checks_beside_others_that_take_place_are_no_lack() -> None:
    """A busy service compares one answer in five seconds, and misses many between."""
    world = World(raw_policy(thresholds={"parityLoss": 0.0}))
    world.look()
    check(world, "match")
    check(world, "missed", 50)
    world.serve_and_look(20)
    assert world.condition("AnalysisConclusive").reason == "InsufficientSamples"
    assert "parityLoss" not in world.condition("AnalysisConclusive").message


def test_missed_checks_survive_a_restart() -> None:
    world = guarded()
    check(world, "missed", 10)
    world.serve_and_look(60, seconds=700)
    world.restart()
    world.look()
    assert world.condition("AnalysisConclusive").reason == "ParityUnknown"


def test_replay_of_an_answer_from_before_the_new_spec_is_not_held_against_it() -> None:
    world = World(raw_policy(thresholds={"parityLoss": 0.0}))
    world.serve_and_look(60)
    world.respec(margin=0.03)
    world.look()
    world.wait(10)
    late = {"time_s": world.now.timestamp(), "status": "parity", "parity": "mismatch", "ttft_s": None}
    world.tell(observation(**late, e2e_s=10.5))
    world.look()
    assert world.of().phase is Phase.PROGRESSING
    world.tell(observation(**late, e2e_s=9.5))
    world.look()
    assert world.of().phase is Phase.ROLLED_BACK


FAILED = {"status": "upstream_failed", "e2e_s": 0.1, "drafted": 0, "accepted": 0}


def test_errors_take_a_class_back_by_evidence_and_never_by_a_few() -> None:
    world = World()
    world.serve(30)
    for _ in range(3):
        world.tell(observation(time_s=world.now.timestamp(), **FAILED))
    world.look()
    assert world.of().phase is Phase.PROGRESSING
    for _ in range(8):
        world.tell(observation(time_s=world.now.timestamp(), **FAILED))
    world.look()
    assert world.of().phase is Phase.ROLLED_BACK
    assert world.condition("RolledBack").reason == "ErrorRateAboveThreshold"
    assert "100.0% of the speculative requests failed, the limit is 0.05, over the last" in world.of().message


@pytest.mark.parametrize(("failures", "phase"), [(9, Phase.PROGRESSING), (13, Phase.ROLLED_BACK)])
def test_errors_of_most_requests_need_no_statistics(failures: int, phase: Phase) -> None:
    world = World(raw_policy(thresholds={"errorRate": 0.4}))
    world.look()
    world.serve(10)
    for _ in range(failures):
        world.tell(observation(time_s=world.now.timestamp(), **FAILED))
    world.look()
    assert world.of().phase is phase
    if phase is Phase.ROLLED_BACK:
        assert "13 of 23 speculative requests failed, the limit is 0.4" in world.of().message


def test_clients_that_leave_and_failures_of_the_plain_arm_are_no_errors_of_speculation() -> None:
    world = World()
    world.serve(30)
    for _ in range(30):
        world.tell(observation(time_s=world.now.timestamp(), status="cancelled"))
        world.tell(observation(arm=Arm.CONTROL, time_s=world.now.timestamp(), status="upstream_failed"))
    world.look()
    assert world.of().phase is Phase.PROGRESSING


def test_retry_comes_at_its_time_stricter_and_pauses_double_until_none_is_left() -> None:
    world = rolled_back()
    pauses = []
    for retries in range(3):
        state = world.of()
        assert state.retries == retries
        if state.retry_at is None:
            break
        before = world.now
        world.look(after_s=world.next_look_s - 1)
        assert world.of().phase is Phase.ROLLED_BACK
        world.look(after_s=1)
        assert (world.of().phase, world.of().step, world.of().retries) == (Phase.PROGRESSING, 0, retries + 1)
        pauses.append((world.now - before).total_seconds())
        world.serve_and_look(150, acceptance=0.5)
        assert world.of().phase is Phase.ROLLED_BACK
    assert pauses == [600.0, 1200.0]
    assert "no retry is left" in world.of().message
    world.look(after_s=1e6)
    assert world.of().phase is Phase.ROLLED_BACK


def test_retry_is_held_to_stricter_thresholds_until_it_is_promoted() -> None:
    world = rolled_back()
    world.look(after_s=600)
    world.serve_and_look(800, acceptance=0.66)  # above the floor of 0.65, below 0.65 × 1.05
    assert world.of().phase is Phase.ROLLED_BACK
    assert world.of().last_decision.threshold == pytest.approx(0.6825)


def test_retry_that_holds_is_promoted_and_then_held_to_the_policys_own_thresholds() -> None:
    world = rolled_back()
    world.look(after_s=600)
    world.serve_and_look(100, rounds=3)
    assert world.of().phase is Phase.PROMOTED
    world.serve_and_look(800, acceptance=0.66)
    assert world.of().phase is Phase.PROMOTED


def test_promoted_class_has_its_retries_back_after_the_longest_pause_and_no_sooner() -> None:
    rollback = {"coolDownSeconds": 600, "maxCoolDownSeconds": 1200, "maxRetries": 1}
    world = rolled_back(rollback=rollback)
    world.look(after_s=600)
    world.serve_and_look(100, rounds=2)
    assert (world.of().phase, world.of().retries) == (Phase.PROMOTED, 1)
    assert "used 1 of 1 retries, available again at 2026-01-01T00:" in world.of().message
    world.serve_and_look(10, seconds=1199)
    assert world.of().retries == 1
    seen = world.ledger.facts(world.now.timestamp())[CODE].guards[0].seen
    world.serve_and_look(10, seconds=1)
    assert (world.of().phase, world.of().retries) == (Phase.PROMOTED, 0)
    assert world.ledger.facts(world.now.timestamp())[CODE].guards[0].seen == seen + 10
    world.serve_and_look(150, acceptance=0.5)
    assert (world.of().phase, world.of().retries) == (Phase.ROLLED_BACK, 0)
    assert world.of().retry_at is not None


def test_retries_do_not_come_back_while_nobody_speculates() -> None:
    rollback = {"coolDownSeconds": 600, "maxCoolDownSeconds": 1200, "maxRetries": 1}
    world = rolled_back(rollback=rollback)
    world.look(after_s=600)
    world.serve_and_look(100, rounds=2)
    world.pair_killed = True
    world.serve_and_look(10, seconds=5000, arms=(Arm.PLAIN,))
    world.pair_killed = False
    world.look()
    assert (world.of().phase, world.of().retries) == (Phase.PROMOTED, 1)


def test_outcomes_from_before_the_retry_do_not_trip_it() -> None:
    world = rolled_back()
    late = [observation(time_s=world.now.timestamp() + 1, acceptance=0.0) for _ in range(300)]
    world.look(after_s=600)
    for seen in late:
        world.tell(seen)
    world.look()
    assert world.of().phase is Phase.PROGRESSING


def test_new_spec_clears_a_rollback() -> None:
    world = rolled_back()
    world.respec(margin=0.03)
    world.look()
    assert (world.of().phase, world.of().step, world.of().retries) == (Phase.PROGRESSING, 0, 0)
    assert world.status.decisions[0].rule == "NewSpec"
    assert world.condition("RolledBack").status == "False"
    world.look()
    assert [decision.rule for decision in world.status.decisions].count("NewSpec") == 1


@pytest.mark.parametrize(
    ("edit", "restarted"),
    [
        ({"classes": [{"name": LONG, "draftTokens": 2}]}, [LONG]),
        ({"classes": [{"name": "summarization", "thresholds": {"acceptanceFloor": 0.1}}]}, [LONG]),
        ({"classes": [{"name": "open_chat", "mode": "plain"}]}, []),
        ({"analysis": {"minSamples": 40, "windowSeconds": 60}}, []),
        ({"rollback": {"maxRetries": 9}}, []),
    ],
)
def test_an_edit_restarts_only_the_classes_that_it_concerns(edit: dict[str, Any], restarted: list[str]) -> None:
    world = World()
    for _ in range(3):
        world.serve(60, LONG)
        world.serve_and_look(60)
    assert (world.of().phase, world.of(LONG).phase) == (Phase.PROMOTED, Phase.PROMOTED)
    before = world.of(), world.of(LONG)
    world.respec(**edit)
    world.look()
    world.serve_and_look(60)
    assert (world.of().phase, world.of().since, world.of().spec_hash) == (
        Phase.PROMOTED,
        before[0].since,
        before[0].spec_hash,
    )
    assert (world.of(LONG).phase is Phase.PROMOTED, world.of(LONG).spec_hash == before[1].spec_hash) == (
        not restarted,
        not restarted,
    )
    said = [one.message for one in world.status.decisions if one.rule == "NewSpec"]
    assert said == [f"new spec: {name} restarts" for name in restarted]


def test_a_state_of_the_version_before_hashes_of_classes_stays() -> None:
    world = promoted()
    whole = world.status.spec_hash
    world.edit(spec_hash="")
    world.status = msgspec.structs.replace(world.status, checkpoint=world.ledger.checkpoint(world.status))
    world.restart()
    before = world.plan().status
    world.look()
    assert (world.of().phase, world.status.spec_hash) == (Phase.PROMOTED, whole)
    assert world.of().spec_hash not in ("", whole)
    assert world.of().speculative.samples == before.classes[0].speculative.samples > 0
    guards = {guard.metric: guard.seen for guard in world.ledger.facts(world.now.timestamp())[CODE].guards}
    assert guards[Metric.ACCEPTANCE] == 300


def test_an_older_operator_keeps_a_rollback() -> None:
    """It compares the hash of the whole spec with that in the checkpoint."""
    world = rolled_back()
    [sealed] = sealed_standings(world.status.checkpoint, PAIR_KEY).values()
    assert sealed.spec_hash == world.status.spec_hash == SpecHashes(world.pair, policy_of(world.raw)).whole
    assert sealed.own_hash == world.of().spec_hash


def test_a_rollback_while_the_spec_cannot_be_read_keeps_its_hash() -> None:
    world = promoted()
    own = world.of().spec_hash
    world.serve(150, acceptance=0.5)
    pair, world.pair = world.pair, None
    world.look()
    assert (world.of().phase, world.of().spec_hash) == (Phase.ROLLED_BACK, own)
    world.pair = pair
    world.respec(classes=[{"name": LONG, "draftTokens": 2}])
    world.look()
    assert world.of().phase is Phase.ROLLED_BACK


def test_an_edit_of_max_retries_counts_for_a_class_that_is_rolled_back() -> None:
    world = rolled_back(rollback={"coolDownSeconds": 600, "maxRetries": 0})
    assert (world.of().retry_at, "no retry is left" in world.of().message) == (None, True)
    world.respec(rollback={"coolDownSeconds": 600, "maxRetries": 2})
    world.look()
    assert world.of().phase is Phase.ROLLED_BACK
    assert f"next attempt at {world.of().retry_at}" in world.of().message
    world.respec(rollback={"coolDownSeconds": 600, "maxRetries": 0})
    world.look(after_s=1200)
    world.look()
    assert (world.of().phase, world.of().retry_at) == (Phase.ROLLED_BACK, None)
    assert "no retry is left" in world.of().message
    world.respec(rollback={"coolDownSeconds": 600, "maxRetries": 2})
    world.look()
    world.look()
    assert (world.of().phase, world.of().retries) == (Phase.PROGRESSING, 1)


def test_retry_token_clears_rollbacks_and_leaves_the_others_alone() -> None:
    world = World()
    for _ in range(3):
        world.serve(100, LONG)
        world.serve_and_look(100)
    world.serve_and_look(150, acceptance=0.5)
    world.respec(retryToken="again")
    world.look()
    assert (world.of().phase, world.of().retries) == (Phase.PROGRESSING, 0)
    assert world.of(LONG).phase is Phase.PROMOTED
    assert world.status.retry_token == "again"
    world.serve_and_look(150, acceptance=0.5)
    assert world.of().phase is Phase.ROLLED_BACK
    world.look()
    assert world.of().phase is Phase.ROLLED_BACK


def test_kill_switch_and_its_end_clear_nothing() -> None:
    world = rolled_back()
    world.respec(killSwitch=True)
    world.look()
    world.respec(killSwitch=None)
    world.look()
    assert world.of().phase is Phase.ROLLED_BACK


def test_class_rules_decide_by_task_and_length() -> None:
    rules = [{"name": "code", "mode": "plain"}, {"name": "code/long", "mode": "speculative"}]
    world = World(raw_policy(classes=rules))
    for name in (CODE, "code/long", LONG):
        world.serve(5, name)
    world.look()
    assert {one.name: (one.phase, one.share) for one in world.status.classes} == {
        CODE: (Phase.DISABLED, 0.0),
        "code/long": (Phase.ENABLED, 1.0),
        LONG: (Phase.PROGRESSING, 0.1),
    }
    world.serve_and_look(300, "code/long", acceptance=0.1)
    assert world.of("code/long").phase is Phase.ENABLED
    for _ in range(30):
        world.tell(observation("code/long", time_s=world.now.timestamp(), status="upstream_timeout"))
    world.look()
    assert world.of("code/long").phase is Phase.ROLLED_BACK


def test_thresholds_of_a_rule_go_before_the_policys() -> None:
    world = World(raw_policy(classes=[{"name": "code", "thresholds": {"acceptanceFloor": 0.4}}]))
    world.serve(300, acceptance=0.5)
    world.serve_and_look(300, LONG, acceptance=0.5)
    world.look()
    assert world.of().phase is Phase.PROGRESSING
    assert world.of(LONG).phase is Phase.ROLLED_BACK


def compared(**spec: Any) -> World:
    """A promoted class whose p95 is limited to 1.5 s."""
    return promoted(count=300, thresholds={"p95Seconds": 1.5}, **spec)


def both(world: World, count: int, *, fast_s: float, slow_s: float) -> None:
    """Answers of both arms at the same time."""
    begin = world.now.timestamp()
    for index in range(count):
        time_s = begin + 60.0 * (index + 1) / count
        for arm, seconds in ((Arm.SPECULATIVE, fast_s), (Arm.CONTROL, slow_s)):
            noise = world.random.uniform(0.8, 1.2)
            world.tell(observation(CODE, arm, time_s=time_s, e2e_s=seconds * noise))
    world.wait(60.0)


def test_class_that_is_slower_than_its_control_is_taken_back_whatever_thresholds_there_are() -> None:
    world = promoted(count=300, thresholds={})
    both(world, 150, fast_s=1.4, slow_s=1.0)
    world.look()
    assert world.of().phase is Phase.ROLLED_BACK
    assert world.condition("RolledBack").reason == "SlowerThanControl"
    decision = world.of().last_decision
    assert (decision.rule, decision.metric, decision.threshold) == ("ControlGuard", "e2eChange", 0.02)
    assert decision.observed == pytest.approx(0.4, abs=0.05)
    assert decision.message.startswith("speculative answers take +")


def test_class_is_kept_where_servers_are_slow_for_both_arms() -> None:
    """A busy host: both arms break the limit, speculation less."""
    world = compared()
    both(world, 200, fast_s=2.0, slow_s=3.5)
    world.look()
    assert world.of().phase is Phase.PROMOTED
    condition = world.condition("ServersSlow")
    assert (condition.status, condition.reason) == ("True", "LimitsBroken")
    assert "code/short: " in condition.message
    assert "took longer than 1.5 s (5% may; of the control's" in condition.message
    assert world.reasons().count("LimitsBroken") == 1
    world.serve_and_look(300, rounds=8)
    assert world.condition("ServersSlow").status == "False"
    assert world.reasons().count("LimitsKept") == 1
    both(world, 200, fast_s=2.0, slow_s=0.9)  # the guard is awake
    world.look()
    assert world.condition("RolledBack").reason == "LatencyAboveThreshold"


def test_broken_limit_waits_for_the_controls_answers() -> None:
    world = compared()
    world.serve_and_look(200, arms=(Arm.SPECULATIVE,), e2e_s=1.8)
    assert world.of().phase is Phase.PROMOTED
    said = world.condition("AnalysisConclusive")
    assert (said.status, said.reason) == ("False", "InsufficientSamples")
    assert "p95Seconds: the limit is broken; 0 answers of the control are too few to compare" in said.message
    assert world.condition("ServersSlow").status == "False"


def test_broken_limit_takes_a_class_back_where_the_policy_has_no_control() -> None:
    steps = [{"share": 0.5, "soakSeconds": 60}, {"share": 1.0, "soakSeconds": 60}]
    world = compared(rollout={"steps": steps}, holdBackShare=0)
    world.serve_and_look(200, arms=(Arm.SPECULATIVE,), e2e_s=1.8)
    assert world.condition("RolledBack").reason == "LatencyAboveThreshold"


@pytest.mark.parametrize("version", [1, 2])
def test_operator_goes_on_from_a_checkpoint_of_an_older_version(version: int) -> None:
    """Where the classes stand is kept; what was counted is read from the store again."""
    world = promoted(count=60)
    assert world.status is not None
    older = world.ledger.checkpoint(world.status)
    packed = base64.b64decode(older)
    state = msgspec.msgpack.decode(zlib.decompress(packed[9:]))
    state[2] = {name: memory[:-2] for name, memory in state[2].items()}  # without the control's share and its time
    state[3] = {name: ["of another", "shape"] for name in state[3]}
    body = bytes([version]) + zlib.compress(msgspec.msgpack.encode(state))
    text = base64.b64encode(hashlib.sha256(body).digest()[:8] + body).decode()
    world.status = msgspec.structs.replace(world.status, checkpoint=text)
    world.restart()
    world.look()
    assert world.of().phase is Phase.PROMOTED
    both(world, 150, fast_s=1.4, slow_s=1.0)
    world.look()
    assert world.condition("RolledBack").reason == "SlowerThanControl"


def test_promoted_class_says_how_much_of_it_gateways_decide_plain() -> None:
    world = compared()
    assert world.of().decided_plain == 0.0
    world.serve(97, arms=(Arm.PLAIN,), e2e_s=1.0)
    world.wait(700.0)  # what was before has left the window
    world.serve(97, arms=(Arm.PLAIN,), e2e_s=1.0)
    world.serve(2, arms=(Arm.SPECULATIVE,))
    world.serve_and_look(1, arms=(Arm.CONTROL,))
    assert world.of().decided_plain == 0.97
    assert world.of().message == (
        "promoted; share 0.5; decided plain by the gateways: 97%, so that it hardly speculates"
    )
    assert world.of().speculative.samples == 2


def test_class_that_hardly_speculates_is_not_counted_as_speculating() -> None:
    world = World(raw_policy(thresholds={}))
    for _ in range(3):
        world.serve(300)
        world.serve_and_look(300, LONG)
    world.wait(800.0)  # what was before has left the window
    for name in (CODE, LONG):
        world.serve(49, name, arms=(Arm.PLAIN,), e2e_s=1.0)  # too few answers to say so
    world.look()
    assert world.of().decided_plain == 1.0
    assert (world.status.state, world.status.reason, world.status.speculating) == ("Promoted", "Complete", "2/2")
    assert "hardly" not in world.of().message
    world.serve(50, arms=(Arm.PLAIN,), e2e_s=1.0)
    world.serve(10, arms=(Arm.SPECULATIVE,))
    world.serve_and_look(50, LONG, arms=(Arm.PLAIN, Arm.SPECULATIVE), e2e_s=1.0)
    assert (world.status.state, world.status.reason, world.status.speculating) == ("Promoted", "Complete", "1/2")
    assert world.condition("Progressing").message == (
        "no class is being rolled out; gateways decide plain for nearly every request of code/short"
    )
    world.serve_and_look(600, LONG, arms=(Arm.PLAIN,), e2e_s=1.0)
    assert (world.status.state, world.status.reason, world.status.speculating) == ("Promoted", "DecidedPlain", "0/2")
    world.wait(800.0)
    world.serve(60)
    world.serve_and_look(60, LONG)
    assert (world.status.reason, world.status.speculating) == ("Complete", "2/2")
