"""The Events of a pair: one note for each transition, none without a transition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from slipstream_core.manifest.check import show
from slipstream_core.manifest.status import Condition, ConditionType, ModelPairStatus
from slipstream_core.manifest.versions import model_kept

from slipstream_operator.reconcile.canary import canary_notes
from slipstream_operator.reconcile.pair_conditions import PairReason
from slipstream_operator.status.conditions import find
from slipstream_operator.types import Note

UNKNOWN_FIELDS_IGNORED = "UnknownFieldsIgnored"
KILL_LANDED = "KillLanded"
KILL_LIFTED = "KillLifted"
MODEL_RENAMED = "ModelRenamed"

# A pair starts without conditions: its expected first conditions cause no note, nor does content of another condition.
_UNREMARKABLE = {
    ConditionType.ACCEPTED: frozenset({PairReason.ACCEPTED}),
    ConditionType.READY: frozenset({PairReason.NO_READY_REPLICAS}),
    ConditionType.RESOLVED_REFS: frozenset(
        {
            PairReason.RESOLVED,
            PairReason.INVALID_SPEC,
            PairReason.MODEL_NAME_TAKEN,
            PairReason.MODEL_NAME_NOT_GRANTED,
            PairReason.API_KEY_NOT_GRANTED,
            PairReason.UNRESOLVED,
        }
    ),
    ConditionType.TOKENIZER_COMPATIBLE: frozenset({PairReason.NO_DRAFT_MODEL}),
    ConditionType.SPECULATION_AVAILABLE: frozenset({PairReason.ALL_SERVERS}),
    ConditionType.PROGRESSING: frozenset(PairReason) - {PairReason.DEADLINE_EXCEEDED, PairReason.CHILDREN_REJECTED},
}

_OF_REVISION = frozenset({PairReason.COMPARING_REVISION, PairReason.REVISION_ROLLED_BACK})
_SAID_AGAIN = (ConditionType.READY, ConditionType.ACCEPTED)


def pair_notes(prior: ModelPairStatus, status: ModelPairStatus, *, ignored: Sequence[str]) -> tuple[Note, ...]:
    """The notes between two statuses of one pair. `ignored` are fields of its spec that this version does not know."""
    return (
        *_transitions(prior, status),
        *_renamed(prior, status),
        *canary_notes(prior.canary, status.canary),
        *_kill(prior, status),
        *_ignored(prior, status, ignored),
    )


def _transitions(prior: ModelPairStatus, status: ModelPairStatus) -> Iterator[Note]:
    for type, unremarkable in _UNREMARKABLE.items():
        before, after = find(prior.conditions, type), find(status.conditions, type)
        if after is None or after.status == "Unknown" or not _differs(before, after):
            continue
        if type is ConditionType.ACCEPTED and (after.reason in _OF_REVISION or _ready_says(after.reason, status)):
            continue  # the note about the revision, or about Ready, is enough
        if not (after.reason in unremarkable and (before is None or type not in _SAID_AGAIN)):
            yield Note(type=_kind(after.status), reason=after.reason, message=after.message)


def _ready_says(reason: str, status: ModelPairStatus) -> bool:
    """Whether Ready has the same reason."""
    ready = find(status.conditions, ConditionType.READY)
    return ready is not None and ready.reason == reason


def _renamed(prior: ModelPairStatus, status: ModelPairStatus) -> Iterator[Note]:
    before, after = (None if each is None else model_kept(each) for each in (prior.last_good, status.last_good))
    if before is not None and after is not None and before != after:
        message = f"the model is now served as {show(after)}, no longer as {show(before)}"
        yield Note(type="Normal", reason=MODEL_RENAMED, message=message)


def _kill(prior: ModelPairStatus, status: ModelPairStatus) -> Iterator[Note]:
    before, after = (find(each.conditions, ConditionType.KILL_SWITCH_ACTIVE) for each in (prior, status))
    was = before.reason if before is not None and before.status == "True" else None
    now = after.reason if after is not None and after.status == "True" else None
    message = after.message if after is not None else ""
    if now is not None and was is None:
        yield Note(type="Warning", reason=PairReason.KILLED, message=message)
    if now == PairReason.KILLED_EVERYWHERE and was != now:
        yield Note(type="Normal", reason=KILL_LANDED, message=message)
    if now is None and was is not None:
        yield Note(type="Normal", reason=KILL_LIFTED, message=message)


def _ignored(prior: ModelPairStatus, status: ModelPairStatus, ignored: Sequence[str]) -> Iterator[Note]:
    before = find(prior.conditions, ConditionType.READY)
    names = ", ".join(ignored)
    if names and (before is None or not before.message.endswith(f": {names}")):
        message = f"fields that this version does not know are ignored: {names}"
        yield Note(type="Warning", reason=UNKNOWN_FIELDS_IGNORED, message=message)


def _differs(before: Condition | None, after: Condition) -> bool:
    return before is None or (before.status, before.reason) != (after.status, after.reason)


def _kind(status: str) -> Literal["Normal", "Warning"]:
    return "Normal" if status == "True" else "Warning"
