"""Which attempts of a call become an observation."""

from __future__ import annotations

from slipstream_core.types import Arm

from slipstream_gateway.request.attempt import Attempt
from slipstream_gateway.request.call import Call
from slipstream_gateway.request.causes import FAILURES
from slipstream_gateway.request.learning import Times

_LENGTH = "length"


def observe(call: Call, attempt: Attempt, status: str, times: Times) -> None:
    """Records the attempt, which is closed, where it can be compared with others.

    An answer that is not whole has no length to learn from: not of several attempts; not where tokens were counted by
    events, as an event may hold several; not where the server was told to stop drafting. A speculative one whose drafts
    were not counted has no number of steps. Failures count all the same, where arms are compared.
    """
    pending, decision, usage, limit = call.observation, attempt.decision, call.usage, call.request.max_tokens
    if pending is None:
        return
    speculative, compared = decision.arm is Arm.SPECULATIVE, decision.arm is not Arm.PLAIN
    whole = call.attempts == 1 and usage.exact and not attempt.was_stopped
    if not (whole and (usage.counted or not speculative)) and (not compared or status not in FAILURES):
        return
    pending.record(
        decision=decision,
        backend=attempt.backend,
        status=status,
        usage=usage,
        times=times,
        batch=attempt.batch,
        cut=_LENGTH in call.finish_reasons or (limit is not None and usage.output_tokens >= limit),
    )
