"""The Events of a pair or a policy about its conditions: one note for each transition, none without a transition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from slipstream_core.manifest.status import Condition, ConditionType, ModelPairStatus, SpeculationPolicyStatus

from slipstream_operator.reconcile.reasons import Reason
from slipstream_operator.status.conditions import find
from slipstream_operator.types import Note

UNKNOWN_FIELDS_IGNORED = "UnknownFieldsIgnored"
KILL_LANDED = "KillLanded"
KILL_LIFTED = "KillLifted"

Statuses = tuple[ModelPairStatus, ModelPairStatus] | tuple[SpeculationPolicyStatus, SpeculationPolicyStatus]


class Told(NamedTuple):
    """The transitions of one condition that become Events. Those to a reason of `unremarkable` do not. With `again`
    they do, except for the first one: an object starts without conditions. `bad` is the status that is a warning."""

    unremarkable: frozenset[Reason]
    again: bool = False
    bad: str = "False"


def transitions(statuses: Statuses, told: Mapping[ConditionType, Told]) -> Iterator[tuple[ConditionType, Note]]:
    """The notes between two statuses of one object, by their condition."""
    for type, rule in told.items():
        before, after = _both(statuses, type)
        if after is None or after.status == "Unknown" or not _differs(before, after):
            continue
        if after.reason not in rule.unremarkable or (before is not None and rule.again):
            is_warning = after.status == rule.bad
            yield type, Note(type="Warning" if is_warning else "Normal", reason=after.reason, message=after.message)


def kill_notes(statuses: Statuses, *, lifted: str = "") -> Iterator[Note]:
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


def ignored_notes(statuses: Statuses, ignored: Sequence[str]) -> Iterator[Note]:
    """The note about fields of the spec that this version does not know, which end the message of Ready."""
    before, names = find(statuses[0].conditions, ConditionType.READY), ", ".join(ignored)
    if names and (before is None or not before.message.endswith(f": {names}")):
        message = f"fields that this version does not know are ignored: {names}"
        yield Note(type="Warning", reason=UNKNOWN_FIELDS_IGNORED, message=message)


def _both(statuses: Statuses, type: ConditionType) -> tuple[Condition | None, Condition | None]:
    return find(statuses[0].conditions, type), find(statuses[1].conditions, type)


def _differs(before: Condition | None, after: Condition) -> bool:
    return before is None or (before.status, before.reason) != (after.status, after.reason)
