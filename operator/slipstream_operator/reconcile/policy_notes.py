"""The Events of a policy: one note for each transition, none without a transition."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from slipstream_core.manifest.status import ConditionType, LastDecision, Phase, SpeculationPolicyStatus

from slipstream_operator.reconcile.policy_conditions import PolicyReason
from slipstream_operator.rollout.trips import REASONS, SILENCES
from slipstream_operator.status.conditions import find
from slipstream_operator.types import Note

STATUS_EDITED = "StatusEdited"
UNKNOWN_FIELDS_IGNORED = "UnknownFieldsIgnored"
KILL_LANDED = "KillLanded"
KILL_LIFTED = "KillLifted"
_SAID_AT_ONCE = frozenset({Phase.ROLLED_BACK.value, Phase.STALE.value})
# A policy starts without conditions: its expected first conditions cause no note.
_EXPECTED = frozenset({PolicyReason.IN_FORCE, PolicyReason.RESOLVED, PolicyReason.PAIR_NOT_READY})


def policy_notes(
    prior: SpeculationPolicyStatus | None,
    status: SpeculationPolicyStatus,
    *,
    news: Sequence[LastDecision],
    edited: Sequence[str],
    ignored: Sequence[str],
) -> tuple[Note, ...]:
    """The notes between two statuses of one policy. `news` are the decisions between them. `edited` are the classes
    whose entries in `prior` were edited by hand."""
    before = prior if prior is not None else SpeculationPolicyStatus()
    return (
        *(_of(decision) for decision in news if _is_news(decision)),
        *_conditions(before, status),
        *_servers_slow(before, status),
        *_kill(before, status),
        *_edited(edited),
        *_ignored(before, ignored),
    )


def _is_news(decision: LastDecision) -> bool:
    """Whether a decision becomes an Event. Of repeated silences of a class, the first, the second, the fourth and so on
    do: a class with one request every other hour would otherwise cause Events without end."""
    if decision.metric != SILENCES or decision.observed is None:
        return True
    return math.frexp(decision.observed)[0] == 0.5  # a power of two


def _of(decision: LastDecision) -> Note:
    if not decision.name:
        return Note(type="Normal", reason=decision.rule, message=decision.message)
    where = f"{decision.name}: {decision.from_phase} -> {decision.to_phase} (share {decision.share:.3g})"
    back = decision.to_phase == Phase.ROLLED_BACK.value
    return Note(
        type="Warning" if decision.to_phase in _SAID_AT_ONCE else "Normal",
        reason=REASONS[decision.rule] if back else decision.rule,
        message=f"{where}: {decision.message}",
    )


def _conditions(before: SpeculationPolicyStatus, status: SpeculationPolicyStatus) -> Iterator[Note]:
    """The notes about Ready, which has the error of the policy, and about an unreachable outcome store."""
    was, now = (find(each.conditions, ConditionType.READY) for each in (before, status))
    if now is not None and (now.reason not in _EXPECTED if was is None else was.reason != now.reason):
        yield Note(type="Normal" if now.status == "True" else "Warning", reason=now.reason, message=now.message)
    was, now = (find(each.conditions, ConditionType.ANALYSIS_CONCLUSIVE) for each in (before, status))
    if was is None or now is None or was.reason == now.reason:
        return
    if now.reason == PolicyReason.STORE_UNREACHABLE:
        yield Note(type="Warning", reason=now.reason, message=now.message)


def _servers_slow(before: SpeculationPolicyStatus, status: SpeculationPolicyStatus) -> Iterator[Note]:
    was, now = (find(each.conditions, ConditionType.SERVERS_SLOW) for each in (before, status))
    if now is not None and now.status != ("False" if was is None else was.status):
        yield Note(type="Warning" if now.status == "True" else "Normal", reason=now.reason, message=now.message)


def _kill(before: SpeculationPolicyStatus, status: SpeculationPolicyStatus) -> Iterator[Note]:
    was, now = (find(each.conditions, ConditionType.KILL_SWITCH_ACTIVE) for each in (before, status))
    killed, kills = was is not None and was.status == "True", now is not None and now.status == "True"
    if now is None:
        return
    if kills and not killed:
        yield Note(type="Warning", reason=PolicyReason.KILLED, message=now.message)
    if now.reason == PolicyReason.KILLED_EVERYWHERE and (was is None or was.reason != now.reason):
        yield Note(type="Normal", reason=KILL_LANDED, message=now.message)
    if killed and not kills:
        yield Note(type="Normal", reason=KILL_LIFTED, message="each class continues in its phase; soak periods restart")


def _edited(edited: Sequence[str]) -> Iterator[Note]:
    if edited:
        message = f"the status of {', '.join(edited)} was edited by hand: the operator's own record is used"
        yield Note(type="Warning", reason=STATUS_EDITED, message=message)


def _ignored(before: SpeculationPolicyStatus, ignored: Sequence[str]) -> Iterator[Note]:
    was, names = find(before.conditions, ConditionType.READY), ", ".join(ignored)
    if names and (was is None or not was.message.endswith(f": {names}")):
        message = f"fields that this version does not know are ignored: {names}"
        yield Note(type="Warning", reason=UNKNOWN_FIELDS_IGNORED, message=message)
