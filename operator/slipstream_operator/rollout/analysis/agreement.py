"""No key changes the state of a class alone: a verdict counts if it holds without each group of keys in turn.

A client knows the arm of its answers and can end those that it likes less, so that the outcomes of one key prove
nothing about the others. The keys of a policy are in three groups. One record has the outcomes of all keys, and there
is one record for each group that has those of all others. A class is promoted or rolled back if all of these agree.

Whatever one key sends, one of the records has no outcome of it. So the rate of false alarms is at most that of this
record, on the requests of the other keys. One key can delay a change, as its requests are part of the other records.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from slipstream_operator.rollout.analysis.facts import (
    ClassFacts,
    ErrorFacts,
    GainFacts,
    GuardFacts,
    LossFacts,
    Verdict,
)
from slipstream_operator.rollout.analysis.verdicts import MOST_FAIL

_FEWEST_FAILURES = 3
HEARD, HEARD_SHARE = 20, 0.05
"""The outcomes without a group count with this many speculative requests within the window, or with this share of them.
Otherwise a single request of a second key would prevent every rollback."""


def agreed(whole: ClassFacts, others: Sequence[ClassFacts]) -> ClassFacts:
    """The facts of a class, in which only verdicts fail or pass that do so without any one group of keys. `whole` is
    from the outcomes of all keys, each of `others` from those without one group. With a single key, `whole` decides."""
    needed = min(HEARD, HEARD_SHARE * whole.errors.requests)
    heard = [one for one in others if one.errors.requests >= max(needed, 1.0)]
    if not heard:
        return whole
    guards = tuple(map(_guard, zip(*(one.guards for one in (whole, *heard)), strict=True)))
    gain = _gain([whole.gain, *(one.gain for one in heard)])
    is_disputed = gain.verdict is not whole.gain.verdict or any(one.verdict is Verdict.DISPUTED for one in guards)
    return msgspec.structs.replace(
        whole,
        guards=guards,
        errors=_errors([whole.errors, *(one.errors for one in heard)]),
        gain=gain,
        control_needed=True if is_disputed else whole.control_needed,
        loss=_loss([whole.loss, *(one.loss for one in heard)]),
        ttft_loss=_loss([whole.ttft_loss, *(one.ttft_loss for one in heard)]),
    )


def _guard(found: Sequence[GuardFacts]) -> GuardFacts:
    failed = {one.verdict is Verdict.FAIL for one in found}
    return msgspec.structs.replace(found[0], verdict=Verdict.DISPUTED) if len(failed) > 1 else found[0]


def _errors(found: Sequence[ErrorFacts]) -> ErrorFacts:
    """The errors without the group that fails alone, if there is one. Requests that are too few for a verdict, and most
    of which fail as well, do not object."""
    return next((one for one in found if one.verdict is not Verdict.FAIL and not _is_failing(one)), found[0])


def _is_failing(errors: ErrorFacts) -> bool:
    too_few = errors.verdict is Verdict.NO_DATA
    return too_few and errors.failures >= max(_FEWEST_FAILURES, MOST_FAIL * errors.requests)


def _gain(found: Sequence[GainFacts]) -> GainFacts:
    """The gain without the group that gains alone, if there is one. Too few answers are no objection."""
    if found[0].verdict is not Verdict.PASS:
        return found[0]
    return next((one for one in found if one.verdict is Verdict.FAIL), found[0])


def _loss(found: Sequence[LossFacts | None]) -> LossFacts | None:
    """The smallest of the losses, if all show one."""
    shown = [one for one in found if one is not None]
    return min(shown, key=lambda one: one.change) if len(shown) == len(found) else None
