"""Which share of a class's speculative answers is held back as its control: more while their comparison is open. Pure.

The share has two values. The comparison stays valid: the share of a block of answers depends on earlier blocks alone
(see `analysis.paired`).
"""

from __future__ import annotations

import msgspec
from slipstream_core.manifest.objects import SpeculationPolicySpec
from slipstream_core.manifest.status import Phase

from slipstream_operator.rollout.analysis import ClassFacts, Verdict
from slipstream_operator.rollout.transitions import ClassState, Situation

DEFAULT_MOST = 0.1
_COMPARED = frozenset({Phase.PROGRESSING, Phase.PROMOTED})
_BROKEN = frozenset({Verdict.UNCLEAR, Verdict.SHARED})


def most_held_back(spec: SpeculationPolicySpec) -> float:
    """Up to which share the policy lets a class's control grow. Without a control it has none."""
    least = spec.hold_back_share
    if least == 0.0:
        return 0.0
    return spec.max_hold_back_share if spec.max_hold_back_share is not None else max(DEFAULT_MOST, least)


def hold_back_share(
    state: ClassState, facts: ClassFacts | None, situation: Situation, *, before: float | None
) -> float | None:
    """The share for a class that is at `state` now. `facts` are those of its present step, None where it has just
    begun; `before` is the share so far, None where none was decided."""
    if situation.held is not None or not situation.connected or not (facts is None or facts.complete):
        return before
    least, most = situation.spec.hold_back_share, most_held_back(situation.spec)
    if state.phase is Phase.ENABLED:  # errors alone take it back
        return most if facts is not None and any(guard.verdict in _BROKEN for guard in facts.guards) else least
    if state.phase not in _COMPARED or 1.0 - state.share >= most:  # the rollout's own control is large enough
        return least
    needed = facts.control_needed if facts is not None else True
    if needed is None:
        return least if before is None else before
    return most if needed else least


def with_control(
    state: ClassState, facts: ClassFacts | None, situation: Situation, *, before: ClassState
) -> ClassState:
    """`state` with the share of its control, which has changed now or is that of `before`."""
    known = None if state.since == situation.now else facts  # a new state has no facts yet
    share = hold_back_share(state, known, situation, before=before.hold_back_share)
    since = before.hold_back_since if share == before.hold_back_share else situation.now
    return msgspec.structs.replace(state, hold_back_share=share, hold_back_since=since)
