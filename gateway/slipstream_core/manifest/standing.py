"""The parts of the operator's status that gateways apply: the state of a pair and of its classes.

A status is untrusted input: an unreadable one never permits speculation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from slipstream_core.manifest.check import show
from slipstream_core.manifest.fingerprint import SpecHashes
from slipstream_core.manifest.speculation_policy import SpeculationPolicy
from slipstream_core.manifest.status import (
    ClassStatus,
    ConditionType,
    LastDecision,
    ModelPairStatus,
    Phase,
    SpeculationPolicyStatus,
)

_GATES = (ConditionType.TOKENIZER_COMPATIBLE, ConditionType.RESOLVED_REFS, ConditionType.READY)
_CLOSED = frozenset({Phase.ROLLED_BACK, Phase.STALE, Phase.DISABLED})


class PairStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a pair beyond its spec. `message` is the reason why it is not ready."""

    ready: bool = True
    message: str = ""


class ClassStanding(msgspec.Struct, frozen=True, kw_only=True):
    """The extent to which one class may speculate: `share` of the requests for which speculation pays, 0 to 1, with the
    reason in `message`. Of that share, `hold_back_share` decodes plainly as the control; None: the policy's."""

    share: float
    phase: Phase
    message: str = ""
    hold_back_share: float | None = None


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """The classes of one policy, by `task/length`; `initial` applies to classes that the operator has not seen yet.
    `decisions` are the operator's latest, newest first; they are for display only."""

    classes: Mapping[str, ClassStanding]
    initial: ClassStanding
    decisions: tuple[LastDecision, ...] = ()

    def of(self, request_class: str) -> ClassStanding:
        """The standing of a class, `task/length`."""
        return self.classes.get(request_class, self.initial)


def standing_of(
    policy: SpeculationPolicy, raw_status: Mapping[str, Any] | None, *, hashes: SpecHashes | None = None
) -> Standing:
    """The standing according to the status of a cluster's `policy`. Never raises.

    Without a status every class is at the first step of its rollout. An unreadable status counts as stale: plain.
    `hashes` are those of the current pair and policy; None if unknown. While the operator has not judged a class under
    the present spec, only its rollback applies.
    """
    first = _first(policy, "the operator has not reported on this class")
    decisions, obeyed = _apart(raw_status or {})
    try:
        status = msgspec.convert(obeyed, SpeculationPolicyStatus)
    except msgspec.ValidationError as error:
        return _unreadable(policy, str(error))
    names = [entry.name for entry in status.classes]
    if len(set(names)) < len(names):
        twice = next(name for index, name in enumerate(names) if name in names[:index])
        return _unreadable(policy, f"the class {show(twice)} is listed twice - at `$.classes`")
    classes = {entry.name: _standing(entry) for entry in status.classes}
    names_no_spec = not status.spec_hash and not any(entry.spec_hash for entry in status.classes)
    if hashes is None or names_no_spec or status.spec_hash == hashes.whole:
        return Standing(classes=classes, initial=first, decisions=decisions)
    unjudged = _first(policy, "the operator has not judged this spec yet")
    for entry in status.classes:
        if entry.phase is not Phase.ROLLED_BACK and entry.spec_hash != hashes.of(entry.name):
            classes[entry.name] = unjudged
    return Standing(classes=classes, initial=unjudged, decisions=decisions)


def _apart(raw_status: Any) -> tuple[tuple[LastDecision, ...], Any]:
    """Separates the decisions from the parts that gateways apply. A bad decision drops all of them and has no other
    effect, because they are for display only."""
    if not isinstance(raw_status, Mapping):
        return (), raw_status
    obeyed = {name: value for name, value in raw_status.items() if name != "decisions"}
    try:
        return msgspec.convert(raw_status.get("decisions") or (), tuple[LastDecision, ...]), obeyed
    except msgspec.ValidationError:
        return (), obeyed


def pair_status_of(raw_status: Mapping[str, Any] | None) -> PairStatus:
    """Whether a cluster's pair may speculate, by its status. Never raises. Without a status it may."""
    try:
        status = msgspec.convert(raw_status or {}, ModelPairStatus)
    except msgspec.ValidationError as error:
        return PairStatus(ready=False, message=f"its status cannot be read: {error}")
    by_type = {condition.type: condition for condition in status.conditions}
    for gate in _GATES:
        condition = by_type.get(gate)
        if condition is not None and condition.status == "False":
            return PairStatus(ready=False, message=condition.message or condition.reason)
    return PairStatus()


def _first(policy: SpeculationPolicy, why: str) -> ClassStanding:
    message = f"{why}: it is at the first step of its rollout"
    return ClassStanding(share=policy.spec.rollout.steps[0].share, phase=Phase.PROGRESSING, message=message)


def _standing(status: ClassStatus) -> ClassStanding:
    share = 0.0 if status.phase in _CLOSED else status.share
    return ClassStanding(
        share=share, phase=status.phase, message=status.message, hold_back_share=status.hold_back_share
    )


def _unreadable(policy: SpeculationPolicy, why: str) -> Standing:
    message = f"the status of SpeculationPolicy/{policy.metadata.name} cannot be read: {why}"
    return Standing(classes={}, initial=ClassStanding(share=0.0, phase=Phase.STALE, message=message))
