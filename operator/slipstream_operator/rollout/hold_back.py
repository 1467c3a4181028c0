"""The hold-back of a class: the share of its speculative requests that become the control. Pure.

The share has two values, and the larger one is used while the comparison of the arms is open. The comparison stays
valid, because the share of a block of answers depends on earlier blocks alone (see `analysis.paired`).
"""

from __future__ import annotations

import msgspec
from slipstream_core.manifest.speculation_policy import SpeculationPolicySpec
from slipstream_core.manifest.status import Phase

from slipstream_operator.rollout.analysis.facts import ClassFacts, Verdict
from slipstream_operator.rollout.transitions import ClassState, Situation

DEFAULT_MOST = 0.1
_COMPARED = frozenset({Phase.PROGRESSING, Phase.PROMOTED})
_BROKEN = frozenset({Verdict.UNCLEAR, Verdict.SHARED, Verdict.DISPUTED})


def most_held_back(spec: SpeculationPolicySpec) -> float:
    """The largest hold-back that the policy allows for a class; 0 if the policy has no control."""
    least = spec.hold_back_share
    if least == 0.0:
        return 0.0
    return spec.max_hold_back_share if spec.max_hold_back_share is not None else max(DEFAULT_MOST, least)


def hold_back_share(
    state: ClassState, facts: ClassFacts | None, situation: Situation, *, before: float | None
) -> float | None:
    """The hold-back of a class in `state`. `facts` are those of its present step, None if the step has just begun.
    `before` is the previous share, None if no share was decided before."""
    if situation.held is not None or not situation.connected or not (facts is None or facts.complete):
        return before
    least, most = situation.spec.hold_back_share, most_held_back(situation.spec)
    if state.phase is Phase.ENABLED:  # only errors roll it back
        return most if facts is not None and any(guard.verdict in _BROKEN for guard in facts.guards) else least
    if state.phase not in _COMPARED or state.share + most <= 1.0:  # the rollout's own control is large enough
        return least
    needed = facts.control_needed if facts is not None else True
    if needed is None:
        return least if before is None else before
    return most if needed else least


def with_control(
    state: ClassState, facts: ClassFacts | None, situation: Situation, *, before: ClassState
) -> ClassState:
    """`state` with its hold-back. `hold_back_since` is that of `before` unless the share has changed now."""
    known = None if state.since == situation.now else facts  # a new state has no facts yet
    share = hold_back_share(state, known, situation, before=before.hold_back_share)
    since = before.hold_back_since if share == before.hold_back_share else situation.now
    return msgspec.structs.replace(state, hold_back_share=share, hold_back_since=since)
