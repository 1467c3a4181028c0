"""The state machine of a new revision: from the start of its servers to its promotion or its rollback. Pure.

A rollback is latched: the same revision is not tried again without a new `retryToken`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec
from slipstream_core.manifest.canary_checks import CanaryCheck
from slipstream_core.manifest.naming import APPROVE
from slipstream_core.manifest.serving import Canary
from slipstream_core.manifest.status import CanaryPhase, CanaryStatus

from slipstream_operator.rollout.analysis.facts import Verdict
from slipstream_operator.rollout.analysis.revisions import FEWEST_REPLAYS, RevisionFacts
from slipstream_operator.status.conditions import read_time, rfc3339

NOT_STARTED = "NotStarted"
ERROR_RATE = "ErrorRate"
PARITY = "ParityGuard"
SLOWER = "SlowerThanServing"
LENGTH = "LengthChanged"
CONTENT = "ContentChanged"
COST = "DearerThanServing"
CHECK_FAILED = "CheckFailed"
UNDECIDED = "Undecided"
PROMOTE = "Promote"
_KEPT = frozenset({Verdict.PASS, Verdict.SHARED, Verdict.NOT_APPLICABLE})


class CanaryServers(NamedTuple):
    """The servers of both revisions. `trouble` is the reason why the new ones do not start, empty if none is known;
    `is_hopeless`: some of them crash again and again, or have a draft that does not fit. `start_s` is the time that a
    start may take."""

    ready: int
    serving_ready: int
    trouble: str
    is_hopeless: bool
    start_s: float


class CheckResult(NamedTuple):
    """The latest result of a check: whether it `passed`, None before the first result, its `failures` in a row, and the
    reason. A look without a result, as when the service is unreachable, adds no failure."""

    name: str
    passed: bool | None = None
    failures: int = 0
    detail: str = "it has no result yet"

    def after(self, passed: bool | None, detail: str) -> CheckResult:
        """The result after another look."""
        failures = self.failures + 1 if passed is False else 0 if passed else self.failures
        return CheckResult(self.name, passed, failures, detail)


class CanaryCase(NamedTuple):
    """The facts for a new revision `now`; `serving` is the one that serves, and `served` are those that have served.
    `facts` is None without evidence. `has_same_target`: its greedy answers are those of the serving revision.
    `approved` is the revision that a person approves; empty: none. `checks` are the known results of
    `canary.checks`."""

    revision: str
    serving: str
    canary: Canary
    servers: CanaryServers
    facts: RevisionFacts | None
    has_same_target: bool
    now: datetime
    served: Sequence[str] = ()
    approved: str = ""
    checks: Sequence[CheckResult] = ()


def advance(prior: CanaryStatus | None, case: CanaryCase) -> CanaryStatus:
    """The state after at most one transition. `prior` is the last one, perhaps of another comparison. A promotion is
    stored together with the version in effect, so a revision that is compared after its promotion is compared anew."""
    if prior is None or not _is_of(prior, case):
        status = CanaryStatus(
            revision=case.revision,
            serving=case.serving,
            retry_token=case.canary.retry_token,
            phase=CanaryPhase.STARTING,
            since=rfc3339(case.now),
            message=_starting(case),
        )
        return _begun(status, case)
    if prior.phase is CanaryPhase.STARTING:
        return _started(prior, case)
    if prior.phase is CanaryPhase.COMPARING:
        return _compared(prior, case)
    return prior


def look_again_s(status: CanaryStatus, case: CanaryCase) -> float | None:
    """When to look again without an event: at the end of the time that a start or a comparison may take."""
    if status.phase not in (CanaryPhase.STARTING, CanaryPhase.COMPARING):
        return None
    return max((_end(status, case) - case.now).total_seconds(), 1.0)


def _is_of(prior: CanaryStatus, case: CanaryCase) -> bool:
    """Whether `prior` is the state of this comparison."""
    known = (prior.revision, prior.serving, prior.retry_token)
    is_same = known == (case.revision, case.serving, case.canary.retry_token)
    return is_same and prior.phase is not CanaryPhase.PROMOTED


def _begun(status: CanaryStatus, case: CanaryCase) -> CanaryStatus:
    """The first state. The way back to a revision that served before is free. Without a server of the serving revision
    there is nothing to compare with, and nothing to lose: it is asleep, or the new revision mends it."""
    if case.servers.is_hopeless:
        return _started(status, case)
    if case.revision in case.served:
        return _ended(status, case, CanaryPhase.PROMOTED, PROMOTE, "it served before")
    if not case.servers.serving_ready:
        return _ended(status, case, CanaryPhase.PROMOTED, PROMOTE, "no server of the serving revision is ready")
    return status


def _started(prior: CanaryStatus, case: CanaryCase) -> CanaryStatus:
    is_late = not case.servers.ready and case.now >= _end(prior, case)
    if case.servers.is_hopeless or is_late:
        return _rolled_back(
            prior, case, NOT_STARTED, f"its servers did not start: {case.servers.trouble or 'no reason is known'}"
        )
    if case.servers.ready:
        return _comparing(prior, case, since=rfc3339(case.now))
    return msgspec.structs.replace(prior, message=_starting(case))


def _compared(prior: CanaryStatus, case: CanaryCase) -> CanaryStatus:
    facts = case.facts or RevisionFacts()
    if case.servers.is_hopeless:
        return _rolled_back(prior, case, NOT_STARTED, f"its servers do not run any more: {case.servers.trouble}")
    if (tripped := _trip(facts, case)) is not None:
        return _rolled_back(prior, case, *tripped)
    is_shown = _is_shown(facts, case) and not _awaited(case)
    if is_shown and not _waits_for_approval(case):
        return _ended(
            prior,
            case,
            CanaryPhase.PROMOTED,
            PROMOTE,
            f"it is not slower than the serving one: {_times(facts, case.canary)}",
        )
    if case.now >= _end(prior, case) and not is_shown:
        return _rolled_back(
            prior, case, UNDECIDED, f"timeoutSeconds are over: {_times(facts, case.canary)}{_waits(case)}"
        )
    return _comparing(prior, case, since=prior.since)


def _trip(facts: RevisionFacts, case: CanaryCase) -> tuple[str, str] | None:
    """The rule and the reason of a rollback."""
    canary = case.canary
    if facts.errors is Verdict.FAIL:
        return ERROR_RATE, f"{facts.error_rate or 0.0:.1%} of its requests failed, the limit is {canary.error_rate:.3g}"
    if facts.parity is Verdict.FAIL and case.has_same_target:
        return PARITY, (
            f"{facts.parity_loss or 0.0:.1%} of its answers differ from those of the serving revision, the limit is "
            f"{canary.parity_loss:.3g}"
        )
    if facts.slow is not None:
        return SLOWER, (
            f"its answers of class {facts.slow.name} take {facts.slow.change:+.1%} compared with those of the serving "
            f"revision of the same period, the limit is {canary.max_slowdown:+.1%} ({facts.slow.samples} answers)"
        )
    if facts.length is not None:
        return LENGTH, (
            f"its answers of class {facts.length.name} have {facts.length.change:+.1%} output tokens compared with "
            f"those of the serving revision of the same period, the limit is {canary.max_length_change:.1%} up or down "
            f"({facts.length.samples} answers)"
        )
    if (content := facts.content) is not None:
        return CONTENT, (
            f"its answers of {content.name} differ by the measure {content.measure}: {content.share:.1%} compared with "
            f"{content.serving_share:.1%} of the serving revision, the limit of the difference is {content.limit:.1%} "
            f"({content.samples} answers)"
        )
    if facts.cost is not None:
        return COST, (
            f"its answers of class {facts.cost.name} cost {facts.cost.change:+.1%} compared with those of the serving "
            f"revision, the limit is {canary.max_cost_increase:+.1%} ({facts.cost.samples} answers)"
        )
    return next(_failed_checks(case), None)


def _failed_checks(case: CanaryCase) -> Iterator[tuple[str, str]]:
    for check, found in _results(case):
        if found.failures >= check.failures:
            yield CHECK_FAILED, f"the check {check.name} failed {found.failures} times in a row: {found.detail}"


def _results(case: CanaryCase) -> list[tuple[CanaryCheck, CheckResult]]:
    """Each check with its result."""
    known = {found.name: found for found in case.checks}
    return [(check, known.get(check.name, CheckResult(check.name))) for check in case.canary.checks]


def _awaited(case: CanaryCase) -> list[CheckResult]:
    """The checks that have not passed."""
    return [found for _, found in _results(case) if not found.passed]


def _waits(case: CanaryCase) -> str:
    return "".join(f"; it waits for the check {found.name}: {found.detail}" for found in _awaited(case))


def _is_shown(facts: RevisionFacts, case: CanaryCase) -> bool:
    """Whether all limits are shown to be kept. Answers of another target are not compared one by one."""
    canary = case.canary
    enough = min(facts.samples, facts.serving_samples) >= canary.min_samples
    fast = facts.bound is not None and facts.bound <= canary.max_slowdown
    is_same = not case.has_same_target or facts.parity in _KEPT
    is_as_long = facts.length_change is not None and abs(facts.length_change) <= canary.max_length_change
    is_as_cheap = facts.cost_change is None or facts.cost_change <= canary.max_cost_increase
    is_kept = is_as_long and is_as_cheap and facts.is_content_kept
    return enough and fast and is_kept and facts.errors in _KEPT and is_same


def _waits_for_approval(case: CanaryCase) -> bool:
    return case.canary.approval == "Manual" and case.approved != case.revision


def _comparing(prior: CanaryStatus, case: CanaryCase, *, since: str) -> CanaryStatus:
    """Its servers get no more requests each than those of the serving revision."""
    servers = case.servers
    share = min(case.canary.share, servers.ready / max(servers.ready + servers.serving_ready, 1))
    facts = case.facts or RevisionFacts()
    waits = _waits(case) if case.facts is not None else "; no outcomes have been read yet"
    if _is_shown(facts, case) and not _awaited(case):
        waits = f"; it keeps all limits, and waits for the annotation {APPROVE}: {case.revision}"
    return msgspec.structs.replace(
        prior,
        phase=CanaryPhase.COMPARING,
        share=round(share, 4),
        since=since,
        samples=facts.samples,
        change=_rounded(facts.change),
        message=f"it gets {share:.3g} of the requests; {_times(facts, case.canary)}{waits}"[:1024],
    )


def _rolled_back(prior: CanaryStatus, case: CanaryCase, rule: str, why: str) -> CanaryStatus:
    return _ended(prior, case, CanaryPhase.ROLLED_BACK, rule, f"{why}; a new revision or retryToken tries again")


def _ended(prior: CanaryStatus, case: CanaryCase, phase: CanaryPhase, rule: str, message: str) -> CanaryStatus:
    facts = case.facts or RevisionFacts()
    return msgspec.structs.replace(
        prior,
        phase=phase,
        share=0.0,
        since=rfc3339(case.now),
        rule=rule,
        message=message[:1024],
        samples=facts.samples,
        change=_rounded(facts.change),
    )


def _times(facts: RevisionFacts, canary: Canary) -> str:
    answers = f"{facts.samples} and {facts.serving_samples} answers, {canary.min_samples} of each are needed"
    if facts.parity is Verdict.NO_DATA:
        answers += f"; of {facts.replays} answers compared, {FEWEST_REPLAYS} are needed"
    if facts.change is None or facts.bound is None:
        return answers
    limit = f"the limit is {canary.max_slowdown:+.1%}"
    return f"its answers take {facts.change:+.1%}, at most {facts.bound:+.1%}, {limit} ({answers})"


def _starting(case: CanaryCase) -> str:
    trouble = f": {case.servers.trouble}" if case.servers.trouble else ""
    return f"its servers start{trouble}"[:1024]


def _end(status: CanaryStatus, case: CanaryCase) -> datetime:
    """The end of the time that the phase may take."""
    is_starting = status.phase is CanaryPhase.STARTING
    allowed_s = case.servers.start_s if is_starting else case.canary.timeout_seconds
    return (read_time(status.since) or case.now) + timedelta(seconds=allowed_s)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
