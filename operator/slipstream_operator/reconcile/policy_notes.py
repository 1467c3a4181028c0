"""The Events of a policy: its decisions, and the transitions of its conditions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from slipstream_core.manifest.status import ConditionType, LastDecision, Phase, SpeculationPolicyStatus

from slipstream_operator.reconcile.notes import Told, ignored_notes, kill_notes, transitions
from slipstream_operator.reconcile.reasons import Reason
from slipstream_operator.rollout.trips import REASONS, SILENCES
from slipstream_operator.types import Note

STATUS_EDITED = "StatusEdited"
_SAID_AT_ONCE = frozenset({Phase.ROLLED_BACK.value, Phase.STALE.value})
_ANALYSIS = ConditionType.ANALYSIS_CONCLUSIVE  # a new policy has not read the store yet
# Ready has the error of the policy.
_TOLD = {
    ConditionType.READY: Told(frozenset({Reason.IN_FORCE, Reason.RESOLVED, Reason.PAIR_NOT_READY}), again=True),
    _ANALYSIS: Told(frozenset(Reason) - {Reason.STORE_UNREACHABLE}),
    ConditionType.SERVERS_SLOW: Told(frozenset({Reason.LIMITS_KEPT}), again=True, bad="True"),
}
_LIFTED = "each class continues in its phase; soak periods restart"


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
        *(note for type, note in transitions(both, _TOLD) if not (is_new and type is _ANALYSIS)),
        *kill_notes(both, lifted=_LIFTED),
        *_edited(edited),
        *ignored_notes(both, ignored),
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
