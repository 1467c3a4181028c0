"""The verdicts on a class from its sums: losses, errors, the cause of a broken limit, and the need of more control."""

from __future__ import annotations

import math
from collections.abc import Iterable

from slipstream_operator.rollout.analysis.facts import ErrorFacts, GainFacts, GuardFacts, LossFacts, Verdict
from slipstream_operator.rollout.analysis.guard import Guard
from slipstream_operator.rollout.analysis.metrics import (
    MIN_ERROR_REQUESTS,
    MIN_FAILURES,
    SHARED_AT,
    Comparison,
    Terms,
)
from slipstream_operator.rollout.analysis.paired import PairedTimes
from slipstream_operator.rollout.analysis.window import Recent

MOST_FAIL = 0.5
"""A rollback needs no guard if at least `MIN_FAILURES` requests, and this share of the window's requests, failed."""
MIN_CONTROL_FAILURES = 2
"""The control fails like the speculative arm if this many of its requests, and a share of `MOST_FAIL`, failed."""
DOUBT_AT = math.log(10.0)
"""With this evidence of a loss or more, the share of the control is raised. A rollback needs more evidence."""


def loss(times: PairedTimes, terms: Terms, *, threshold: float, allowed: float) -> LossFacts | None:
    """The loss beyond `threshold`; the control's times were raised by the share `allowed`."""
    found = times.found_loss(terms.alarm_at, margin=threshold)
    if found is None:
        return None
    return LossFacts(
        change=(1.0 + found.change(found.difference)) * (1.0 + allowed) - 1.0,
        threshold=(1.0 + threshold) * (1.0 + allowed) - 1.0,
        speculative=found.speculative,
        control=found.control,
    )


def control_needed(gain: GainFacts, guards: Iterable[GuardFacts], doubt: float) -> bool | None:
    """Whether more control answers are needed. None between the two bounds, so that random variation does not change
    the share back and forth."""
    verdicts = {guard.verdict for guard in guards}
    shown = gain.verdict is not Verdict.NO_DATA and gain.change is not None and gain.change <= gain.threshold
    if not shown or Verdict.UNCLEAR in verdicts or doubt >= DOUBT_AT:
        return True
    clear = gain.verdict is Verdict.PASS and Verdict.SHARED not in verdicts and doubt <= 0.0
    return False if clear else None


def blamed(guard: Guard, limit: float, comparison: Comparison) -> Verdict:
    """The verdict on a broken limit: FAIL if speculation is the cause, SHARED if the servers are, else UNCLEAR."""
    alone_after = comparison.alone_after
    if alone_after is not None and not guard.control_total and guard.run_total >= alone_after:
        return Verdict.FAIL
    blame = guard.blame(limit)
    if blame >= comparison.blame_at:
        return Verdict.FAIL
    return Verdict.SHARED if blame <= SHARED_AT else Verdict.UNCLEAR


def error_facts(speculative: Recent, control: Recent, limit: float) -> ErrorFacts:
    failures, requests = speculative.failures, speculative.requests
    if requests < MIN_ERROR_REQUESTS:
        verdict = Verdict.NO_DATA
    elif failures < MIN_FAILURES or failures < MOST_FAIL * requests or failures <= limit * requests:
        verdict = Verdict.PASS
    else:
        shared = control.failures >= max(MIN_CONTROL_FAILURES, MOST_FAIL * control.requests)
        verdict = Verdict.SHARED if shared and limit > 0.0 else Verdict.FAIL
    return ErrorFacts(
        verdict=verdict,
        failures=failures,
        requests=requests,
        limit=limit,
        control_failures=control.failures,
        control_requests=control.requests,
    )
