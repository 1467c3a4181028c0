"""The Events of a pair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slipstream_core.manifest.check import show
from slipstream_core.manifest.status import ConditionType, ModelPairStatus
from slipstream_core.manifest.versions import model_kept

from slipstream_operator.reconcile.canary import canary_notes
from slipstream_operator.reconcile.notes import Told, ignored_notes, kill_notes, transitions
from slipstream_operator.reconcile.reasons import Reason
from slipstream_operator.status.conditions import find
from slipstream_operator.types import Note

MODEL_RENAMED = "ModelRenamed"

_UNRESOLVED = (
    Reason.MODEL_NAME_TAKEN,
    Reason.MODEL_NAME_NOT_GRANTED,
    Reason.API_KEY_NOT_GRANTED,
    Reason.PRIVILEGES_FORBIDDEN,
    Reason.UNRESOLVED,
)
# Not the content of another condition, nor the expected first conditions of a pair.
_TOLD = {
    ConditionType.ACCEPTED: Told(frozenset({Reason.ACCEPTED}), again=True),
    ConditionType.READY: Told(frozenset({Reason.NO_READY_REPLICAS}), again=True),
    ConditionType.RESOLVED_REFS: Told(frozenset({Reason.RESOLVED, Reason.INVALID_SPEC, *_UNRESOLVED})),
    ConditionType.TOKENIZER_COMPATIBLE: Told(frozenset({Reason.NO_DRAFT_MODEL})),
    ConditionType.SPECULATION_AVAILABLE: Told(frozenset({Reason.ALL_SERVERS})),
    ConditionType.PROGRESSING: Told(frozenset(Reason) - {Reason.DEADLINE_EXCEEDED, Reason.CHILDREN_REJECTED}),
}
_OF_REVISION = frozenset({Reason.COMPARING_REVISION, Reason.REVISION_ROLLED_BACK})


def pair_notes(prior: ModelPairStatus, status: ModelPairStatus, *, ignored: Sequence[str]) -> tuple[Note, ...]:
    """The notes between two statuses of one pair. `ignored` are fields of its spec that this version does not know."""
    both = prior, status
    return (
        *(note for type, note in transitions(both, _TOLD) if not _is_said_elsewhere(type, note, status)),
        *_renamed(prior, status),
        *canary_notes(prior.canary, status.canary),
        *kill_notes(both),
        *ignored_notes(both, ignored),
    )


def _is_said_elsewhere(type: ConditionType, note: Note, status: ModelPairStatus) -> bool:
    """Whether the note about the revision, or about Ready, has the reason of Accepted."""
    ready = find(status.conditions, ConditionType.READY)
    is_of_ready = ready is not None and ready.reason == note.reason
    return type is ConditionType.ACCEPTED and (note.reason in _OF_REVISION or is_of_ready)


def _renamed(prior: ModelPairStatus, status: ModelPairStatus) -> Iterator[Note]:
    before, after = (None if each is None else model_kept(each) for each in (prior.last_good, status.last_good))
    if before is not None and after is not None and before != after:
        message = f"the model is now served as {show(after)}, no longer as {show(before)}"
        yield Note(type="Normal", reason=MODEL_RENAMED, message=message)
