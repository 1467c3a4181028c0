"""`Reconciling` and `Stalled`: whether an object has what its newest spec asks for, in the words of kstatus
(https://github.com/kubernetes-sigs/cli-utils/blob/master/pkg/kstatus/README.md), which Flux and others read.

Both are True only while something is wrong or changes, so tools that know neither see no difference.
"""

from __future__ import annotations

from slipstream_core.manifest.status import Condition, ConditionType

from slipstream_operator.reconcile.reasons import Finding, Reason
from slipstream_operator.status.conditions import Conditions

_WAITING = frozenset({Reason.COMPARING_REVISION, Reason.MODEL_NAME_IN_USE})
_STUCK = frozenset({Reason.DEADLINE_EXCEEDED, Reason.CHILDREN_REJECTED, Reason.KIND_MISSING, Reason.NOT_MANAGED})


def set_kstatus(conditions: Conditions, *, rolls_out: bool) -> None:
    """Sets both from the conditions that are set already. `rolls_out`: the condition `Progressing` is about servers, as
    a pair's is. That of a policy is about its classes, which advance for as long as there is traffic."""
    found = {condition.type: condition for condition in conditions.all}
    stalled = _stalled(found[ConditionType.ACCEPTED], found[ConditionType.RESOLVED_REFS])
    progressing, reconciling = found[ConditionType.PROGRESSING], None
    if rolls_out and progressing.reason in _STUCK:
        stalled = stalled or progressing
    if not stalled:
        reconciling = _reconciling(found[ConditionType.ACCEPTED], progressing if rolls_out else None)
    conditions.set(ConditionType.RECONCILING, *_finding(reconciling, Reason.NOT_RECONCILING()))
    conditions.set(ConditionType.STALLED, *_finding(stalled, Reason.NOT_STALLED()))


def _stalled(accepted: Condition, *others: Condition) -> Condition | None:
    """The condition that a change of the spec or of the cluster has to mend."""
    if accepted.status == "False" and accepted.reason not in _WAITING:
        return accepted
    return next((one for one in others if one.status == "False"), None)


def _reconciling(accepted: Condition, progressing: Condition | None) -> Condition | None:
    if accepted.status == "False":
        return accepted
    return progressing if progressing is not None and progressing.status == "True" else None


def _finding(cause: Condition | None, otherwise: Finding) -> Finding:
    return otherwise if cause is None else Finding("True", cause.reason, cause.message)
