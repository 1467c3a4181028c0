"""The Events of a pair or a policy: about its decisions and its conditions, one note for each transition."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from slipstream_core.manifest.check import show
from slipstream_core.manifest.status import (
    CanaryPhase,
    CanaryStatus,
    Condition,
    ConditionType,
    LastDecision,
    ModelPairStatus,
    Phase,
    SpeculationPolicyStatus,
)
from slipstream_core.manifest.versions import model_kept

from slipstream_operator.reconcile.reasons import Reason
from slipstream_operator.rollout.trips import REASONS, SILENCES
from slipstream_operator.status.conditions import find
from slipstream_operator.types import Note

UNKNOWN_FIELDS_IGNORED = "UnknownFieldsIgnored"
KILL_LANDED = "KillLanded"
KILL_LIFTED = "KillLifted"
MODEL_RENAMED = "ModelRenamed"
STATUS_EDITED = "StatusEdited"
ANNOTATION_IGNORED = "AnnotationIgnored"

Statuses = tuple[ModelPairStatus, ModelPairStatus] | tuple[SpeculationPolicyStatus, SpeculationPolicyStatus]


class Told(NamedTuple):
    """The transitions of one condition that become Events. Those to a reason of `unremarkable` do not. With `again`
    they do, except for the first one: an object starts without conditions. `bad` is the status that is a warning."""

    unremarkable: frozenset[Reason]
    again: bool = False
    bad: str = "False"


_UNRESOLVED = (
    Reason.MODEL_NAME_TAKEN,
    Reason.MODEL_NAME_NOT_GRANTED,
    Reason.API_KEY_NOT_GRANTED,
    Reason.PRIVILEGES_FORBIDDEN,
    Reason.UNRESOLVED,
)
# Not the content of another condition, nor the expected first conditions of a pair.
_OF_PAIR = {
    ConditionType.ACCEPTED: Told(frozenset({Reason.ACCEPTED}), again=True),
    ConditionType.READY: Told(frozenset({Reason.NO_READY_REPLICAS}), again=True),
    ConditionType.RESOLVED_REFS: Told(frozenset({Reason.RESOLVED, Reason.INVALID_SPEC, *_UNRESOLVED})),
    ConditionType.TOKENIZER_COMPATIBLE: Told(frozenset({Reason.NO_DRAFT_MODEL})),
    ConditionType.SPECULATION_AVAILABLE: Told(frozenset({Reason.ALL_SERVERS})),
    ConditionType.PROGRESSING: Told(frozenset(Reason) - {Reason.DEADLINE_EXCEEDED, Reason.CHILDREN_REJECTED}),
}
_OF_REVISION = frozenset({Reason.COMPARING_REVISION, Reason.REVISION_ROLLED_BACK})
_SAID_AT_ONCE = frozenset({Phase.ROLLED_BACK.value, Phase.STALE.value})
_ANALYSIS = ConditionType.ANALYSIS_CONCLUSIVE  # a new policy has not read the store yet
# Ready has the error of the policy.
_OF_POLICY = {
    ConditionType.READY: Told(frozenset({Reason.IN_FORCE, Reason.RESOLVED, Reason.PAIR_NOT_READY}), again=True),
    _ANALYSIS: Told(frozenset(Reason) - {Reason.STORE_UNREACHABLE}),
    ConditionType.SERVERS_SLOW: Told(frozenset({Reason.LIMITS_KEPT}), again=True, bad="True"),
}
_LIFTED = "each class continues in its phase; soak periods restart"


def pair_notes(
    prior: ModelPairStatus, status: ModelPairStatus, *, ignored: Sequence[str], without_effect: Sequence[str] = ()
) -> tuple[Note, ...]:
    """The notes between two statuses of one pair. `ignored` are its fields that this version does not know,
    `without_effect` sentences about annotations, which are also in the message of Accepted."""
    both = prior, status
    return (
        *(note for type, note in _transitions(both, _OF_PAIR) if not _is_said_elsewhere(type, note, status)),
        *_renamed(prior, status),
        *_canary_notes(prior.canary, status.canary),
        *_kill_notes(both),
        *_ignored_notes(both, ignored),
        *_annotation_notes(find(prior.conditions, ConditionType.ACCEPTED), without_effect),
    )


def _is_said_elsewhere(type: ConditionType, note: Note, status: ModelPairStatus) -> bool:
    """Whether the note about the revision has the reason of Accepted, or that about Ready the reason of any of the two
    others."""
    ready = find(status.conditions, ConditionType.READY)
    is_of_ready = ready is not None and ready.reason == note.reason
    is_of_revision = type is ConditionType.ACCEPTED and note.reason in _OF_REVISION
    return is_of_revision or (type in (ConditionType.ACCEPTED, ConditionType.PROGRESSING) and is_of_ready)


def _renamed(prior: ModelPairStatus, status: ModelPairStatus) -> Iterator[Note]:
    before, after = (None if each is None else model_kept(each) for each in (prior.last_good, status.last_good))
    if before is not None and after is not None and before != after:
        message = f"the model is now served as {show(after)}, no longer as {show(before)}"
        yield Note(type="Normal", reason=MODEL_RENAMED, message=message)


def policy_notes(
    before: SpeculationPolicyStatus,
    status: SpeculationPolicyStatus,
    *,
    news: Sequence[LastDecision],
    edited: Sequence[str],
    ignored: Sequence[str],
) -> tuple[Note, ...]:
    """The notes between two statuses of one policy. `news` are the decisions between them. `edited` are the classes
    whose entries in `before` were edited by hand."""
    both, is_new = (before, status), not before.conditions
    return (
        *(_of(decision) for decision in news if _is_news(decision)),
        *(note for type, note in _transitions(both, _OF_POLICY) if not (is_new and type is _ANALYSIS)),
        *_kill_notes(both, lifted=_LIFTED),
        *_edited(edited),
        *_ignored_notes(both, ignored),
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


def _edited(edited: Sequence[str]) -> Iterator[Note]:
    if edited:
        message = f"the status of {', '.join(edited)} was edited by hand: the operator's own record is used"
        yield Note(type="Warning", reason=STATUS_EDITED, message=message)


def _canary_notes(prior: CanaryStatus | None, now: CanaryStatus | None) -> Iterator[Note]:
    """One note for each phase of each revision."""
    if now is None or (prior is not None and (prior.revision, prior.phase) == (now.revision, now.phase)):
        return
    yield Note(
        type="Warning" if now.phase is CanaryPhase.ROLLED_BACK else "Normal",
        reason=f"Revision{now.phase.value}",
        message=f"revision {now.revision}: {now.message}",
    )


def _transitions(statuses: Statuses, told: Mapping[ConditionType, Told]) -> Iterator[tuple[ConditionType, Note]]:
    """The notes between two statuses of one object, by their condition."""
    for type, rule in told.items():
        before, after = _both(statuses, type)
        if after is None or after.status == "Unknown" or not _differs(before, after):
            continue
        if after.reason not in rule.unremarkable or (before is not None and rule.again):
            is_warning = after.status == rule.bad
            yield type, Note(type="Warning" if is_warning else "Normal", reason=after.reason, message=after.message)


def _kill_notes(statuses: Statuses, *, lifted: str = "") -> Iterator[Note]:
    """The notes about the kill switch. `lifted` is the message about its end, by default that of the condition."""
    before, after = _both(statuses, ConditionType.KILL_SWITCH_ACTIVE)
    if after is None:
        return
    was = before.reason if before is not None and before.status == "True" else None
    is_on = after.status == "True"
    if is_on and was is None:
        yield Note(type="Warning", reason=Reason.KILLED, message=after.message)
    if after.reason == Reason.KILLED_EVERYWHERE and was != after.reason:
        yield Note(type="Normal", reason=KILL_LANDED, message=after.message)
    if was is not None and not is_on:
        yield Note(type="Normal", reason=KILL_LIFTED, message=lifted or after.message)


def _ignored_notes(statuses: Statuses, ignored: Sequence[str]) -> Iterator[Note]:
    """The note about fields of the spec that this version does not know, which end the message of Ready."""
    before, names = find(statuses[0].conditions, ConditionType.READY), ", ".join(ignored)
    if names and (before is None or not before.message.endswith(f": {names}")):
        message = f"fields that this version does not know are ignored: {names}"
        yield Note(type="Warning", reason=UNKNOWN_FIELDS_IGNORED, message=message)


def _annotation_notes(before: Condition | None, without_effect: Sequence[str]) -> Iterator[Note]:
    for message in without_effect:
        if before is None or message not in before.message:
            yield Note(type="Warning", reason=ANNOTATION_IGNORED, message=message)


def _both(statuses: Statuses, type: ConditionType) -> tuple[Condition | None, Condition | None]:
    return find(statuses[0].conditions, type), find(statuses[1].conditions, type)


def _differs(before: Condition | None, after: Condition) -> bool:
    return before is None or (before.status, before.reason) != (after.status, after.reason)
