"""The state of a new revision: what starts it, promotes it and takes it back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from slipstream_core.manifest.canary_checks import CanaryCheck
from slipstream_core.manifest.serving import Canary
from slipstream_core.manifest.status import CanaryPhase, CanaryStatus
from slipstream_operator.rollout.analysis.content import ChangedContent
from slipstream_operator.rollout.analysis.facts import Verdict
from slipstream_operator.rollout.analysis.revisions import ChangedClass, RevisionFacts
from slipstream_operator.rollout.canary import CanaryCase, CanaryServers, CheckResult, advance, look_again_s

NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)
START_S = 600.0
RUNNING = CanaryServers(ready=1, serving_ready=3, trouble="", is_hopeless=False, start_s=START_S)
STARTING = RUNNING._replace(ready=0)
GOOD = RevisionFacts(
    samples=300,
    serving_samples=900,
    change=0.0,
    bound=0.03,
    errors=Verdict.PASS,
    parity=Verdict.PASS,
    error_rate=0.0,
    length_change=0.1,
    is_content_kept=True,
)

REFUSING = ChangedContent(
    name="class code/long", measure="refused", share=0.6, serving_share=0.02, limit=0.15, samples=40
)


def case(servers: CanaryServers = RUNNING, facts: RevisionFacts | None = None, **more: Any) -> CanaryCase:
    fields = {"revision": "new", "serving": "old", "canary": Canary(), "has_same_target": True, "now": NOW}
    return CanaryCase(servers=servers, facts=facts, **{**fields, **more})


def comparing(**more: Any) -> CanaryStatus:
    started = advance(advance(None, case(STARTING)), case(RUNNING))
    assert started.phase is CanaryPhase.COMPARING
    return CanaryStatus(**{**{name: getattr(started, name) for name in started.__struct_fields__}, **more})


def but(**more: Any) -> RevisionFacts:
    return RevisionFacts(**{**{name: getattr(GOOD, name) for name in GOOD.__struct_fields__}, **more})


def test_its_servers_start_before_it_gets_requests() -> None:
    starting = advance(None, case(STARTING))
    assert (starting.phase, starting.share) == (CanaryPhase.STARTING, 0.0)
    assert look_again_s(starting, case(STARTING)) == START_S
    assert advance(starting, case(STARTING, now=NOW + timedelta(seconds=START_S - 1))).phase is CanaryPhase.STARTING
    assert advance(starting, case(RUNNING)).phase is CanaryPhase.COMPARING


def test_without_servers_to_compare_with_it_takes_effect_at_once() -> None:
    down = STARTING._replace(serving_ready=0)
    assert advance(None, case(down)).phase is CanaryPhase.PROMOTED
    assert advance(None, case(down._replace(is_hopeless=True))).phase is CanaryPhase.ROLLED_BACK
    assert advance(comparing(), case(RUNNING._replace(serving_ready=0))).phase is CanaryPhase.COMPARING


@pytest.mark.parametrize(
    ("ready", "serving", "share", "expected"),
    [(1, 3, 0.1, 0.1), (1, 19, 0.1, 0.05), (1, 1, 0.5, 0.5), (0, 3, 0.1, 0.0)],
)
def test_its_servers_get_no_more_requests_each_than_the_serving_ones(
    ready: int, serving: int, share: float, expected: float
) -> None:
    servers = RUNNING._replace(ready=ready, serving_ready=serving)
    assert advance(comparing(), case(servers, canary=Canary(share=share))).share == expected


def test_servers_that_do_not_start_in_time_end_it() -> None:
    starting = advance(None, case(STARTING))
    late = advance(starting, case(STARTING._replace(trouble="pod x: no node"), now=NOW + timedelta(seconds=START_S)))
    assert (late.phase, late.rule) == (CanaryPhase.ROLLED_BACK, "NotStarted")
    assert "no node" in late.message


@pytest.mark.parametrize("ready", [0, 1])
@pytest.mark.parametrize("phase", ["starting", "comparing"])
def test_servers_that_crash_again_and_again_end_it_at_once(phase: str, ready: int) -> None:
    hopeless = STARTING._replace(ready=ready, trouble="pod x: exited with code 1", is_hopeless=True)
    before = advance(None, case(STARTING)) if phase == "starting" else comparing()
    assert advance(before, case(hopeless)).phase is CanaryPhase.ROLLED_BACK


def test_a_good_revision_is_promoted_once_all_is_shown() -> None:
    promoted = advance(comparing(), case(facts=GOOD))
    assert (promoted.phase, promoted.share, promoted.rule) == (CanaryPhase.PROMOTED, 0.0, "Promote")
    assert look_again_s(promoted, case(facts=GOOD)) is None


@pytest.mark.parametrize(
    "facts",
    [
        None,
        but(samples=199),
        but(serving_samples=199),
        but(bound=None, change=None),
        but(bound=0.06),
        but(errors=Verdict.UNCLEAR),
        but(errors=Verdict.NO_DATA),
        but(parity=Verdict.NO_DATA),
        but(length_change=None),
        but(length_change=-0.3),
        but(cost_change=0.3),
        but(is_content_kept=False),
    ],
)
def test_nothing_less_promotes(facts: RevisionFacts | None) -> None:
    assert advance(comparing(), case(facts=facts)).phase is CanaryPhase.COMPARING


def test_the_way_back_to_what_served_before_is_free() -> None:
    promoted = advance(comparing(), case(facts=GOOD))
    way_back = {"revision": "old", "serving": "new", "served": ("new", "old")}
    back = advance(promoted, case(STARTING, **way_back))
    assert (back.phase, back.rule, back.message) == (CanaryPhase.PROMOTED, "Promote", "it served before")
    assert advance(promoted, case(STARTING, **{**way_back, "served": ("new",)})).phase is CanaryPhase.STARTING
    hopeless = STARTING._replace(trouble="pod x: exited with code 1", is_hopeless=True)
    assert advance(promoted, case(hopeless, **way_back)).phase is CanaryPhase.ROLLED_BACK


def test_answers_of_another_target_are_not_compared() -> None:
    facts = but(parity=Verdict.NO_DATA)
    assert advance(comparing(), case(facts=facts, has_same_target=False)).phase is CanaryPhase.PROMOTED


@pytest.mark.parametrize(
    ("facts", "rule"),
    [
        (but(errors=Verdict.FAIL, error_rate=0.4), "ErrorRate"),
        (but(parity=Verdict.FAIL, parity_loss=0.9), "ParityGuard"),
        (but(slow=ChangedClass(name="code/long", change=0.4, samples=80)), "SlowerThanServing"),
        (but(length=ChangedClass(name="code/long", change=-0.9, samples=80)), "LengthChanged"),
        (but(cost=ChangedClass(name="code/long", change=0.9, samples=80)), "DearerThanServing"),
        (but(content=REFUSING), "ContentChanged"),
    ],
)
def test_what_is_shown_takes_it_back_for_good(facts: RevisionFacts, rule: str) -> None:
    taken = advance(comparing(), case(facts=facts))
    assert (taken.phase, taken.rule, taken.share) == (CanaryPhase.ROLLED_BACK, rule, 0.0)
    later = NOW + timedelta(days=30)
    assert advance(taken, case(facts=GOOD, now=later)) == taken
    assert look_again_s(taken, case(facts=GOOD)) is None
    for other in ({"revision": "newer"}, {"serving": "older"}, {"canary": Canary(retry_token="again")}):
        assert advance(taken, case(STARTING, **other)).phase is CanaryPhase.STARTING


def test_a_changed_content_is_named_with_both_figures() -> None:
    message = advance(comparing(), case(facts=but(content=REFUSING))).message
    assert message.startswith(
        "its answers of class code/long differ by the measure refused: 60.0% compared with 2.0% of"
    )


CHECKED = Canary(checks=(CanaryCheck(name="smoke", failures=2), CanaryCheck(name="errors")))


@pytest.mark.parametrize("late", [False, True])
def test_it_waits_for_checks_and_names_those_that_have_not_passed(late: bool) -> None:
    now = NOW + timedelta(days=2 * late)
    checks = (CheckResult("smoke").after(True, "status 200"), CheckResult("errors").after(None, "no answer in time"))
    waiting = advance(comparing(), case(facts=GOOD, canary=CHECKED, checks=checks, now=now))
    assert (waiting.phase, waiting.rule) == (
        (CanaryPhase.ROLLED_BACK, "Undecided") if late else (CanaryPhase.COMPARING, "")
    )
    assert "; it waits for the check errors: no answer in time" in waiting.message
    assert "smoke" not in waiting.message
    unknown = advance(comparing(), case(facts=GOOD, canary=CHECKED))
    assert "the check smoke: it has no result yet" in unknown.message
    passed = (*checks[:1], CheckResult("errors").after(True, "0.1"))
    assert advance(comparing(), case(facts=GOOD, canary=CHECKED, checks=passed)).phase is CanaryPhase.PROMOTED


def test_a_check_that_fails_again_and_again_takes_it_back() -> None:
    smoke = CheckResult("smoke").after(False, "status 403")
    assert advance(comparing(), case(facts=GOOD, canary=CHECKED, checks=(smoke,))).phase is CanaryPhase.COMPARING
    smoke = smoke.after(None, "status 503").after(False, "status 403")
    taken = advance(comparing(), case(canary=CHECKED, checks=(smoke,)))
    assert (taken.phase, taken.rule) == (CanaryPhase.ROLLED_BACK, "CheckFailed")
    assert taken.message.startswith("the check smoke failed 2 times in a row: status 403")


def test_a_person_approves_the_revision_by_its_hash() -> None:
    manual = {"canary": Canary(approval="Manual"), "facts": GOOD, "now": NOW + timedelta(days=30)}
    for approved in ("", "old"):
        waiting = advance(comparing(), case(**manual, approved=approved))
        assert waiting.phase is CanaryPhase.COMPARING, "it waits beyond timeoutSeconds"
        assert waiting.message.endswith("waits for the annotation slipstream.dev/approve-revision: new")
    assert advance(waiting, case(**manual, approved="new")).phase is CanaryPhase.PROMOTED
    early = advance(comparing(), case(**{**manual, "now": NOW, "facts": but(samples=100)}, approved="new"))
    assert early.phase is CanaryPhase.COMPARING, "an approval replaces no evidence"


def test_a_comparison_without_an_end_is_ended() -> None:
    began = comparing()
    canary = Canary(timeout_seconds=3600)
    assert look_again_s(began, case(canary=canary)) == 3600.0
    late = advance(began, case(canary=canary, now=NOW + timedelta(seconds=3600)))
    assert (late.phase, late.rule) == (CanaryPhase.ROLLED_BACK, "Undecided")


def test_answers_of_another_target_may_differ() -> None:
    facts = but(parity=Verdict.FAIL, parity_loss=1.0)
    assert advance(comparing(), case(facts=facts, has_same_target=False)).phase is CanaryPhase.PROMOTED


def test_without_a_store_it_waits_and_says_so() -> None:
    assert "no outcomes have been read yet" in advance(comparing(), case(facts=None)).message
