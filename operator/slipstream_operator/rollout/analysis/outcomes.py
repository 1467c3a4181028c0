"""The classification of observations as evidence, and the check that their figures are plausible."""

from __future__ import annotations

from enum import Enum
from typing import Final

from slipstream_core.observation import PARITY, Observation, ParityResult
from slipstream_core.types import TREATMENT, Arm, LengthBin, Reason, TaskType

CLASSES: Final = frozenset(f"{task}/{length}" for task in TaskType for length in LengthBin)

_NOT_WORTH_IT = frozenset({Reason.BREAK_EVEN, Reason.COST})
# Failures that the servers or the gateway cause. A disconnected client or an invalid request is no such failure.
_FAILURES = frozenset({"upstream_timeout", "upstream_unavailable", "upstream_failed", "internal"})
_MAX_TOKENS = 10_000_000
_MIN_SECONDS, _MAX_SECONDS = 1e-6, 100_000.0
_MAX_PRICE = 1_000_000.0


class Kind(Enum):
    """The kind of an outcome as evidence.

    `ANSWER`: an answer of the speculative arm or of the control, for the comparison. `OTHER_ANSWER`: an answer of the
    speculative arm for another reason, such as exploration or a client's wish. `FAILURE`: a failure of the speculative
    arm. `CONTROL_FAILURE`: a failure of the control. `PARITY`: a parity check of an answer. `PARITY_MISSED`: one that
    did not take place. `DECLINED`: a plain answer, because speculation would not pay. `HEARD`: proves only that the
    class has traffic.
    """

    ANSWER = 1
    OTHER_ANSWER = 2
    FAILURE = 3
    PARITY = 4
    DECLINED = 5
    HEARD = 6
    CONTROL_FAILURE = 7
    PARITY_MISSED = 8


_CHECKS = {
    ParityResult.MATCH.value: Kind.PARITY,
    ParityResult.MISMATCH.value: Kind.PARITY,
    ParityResult.MISSED.value: Kind.PARITY_MISSED,
}
_FAILED = {Arm.SPECULATIVE: Kind.FAILURE, Arm.CONTROL: Kind.CONTROL_FAILURE}


def kind_of(seen: Observation) -> Kind | None:
    """The kind of `seen`; None for impossible values. A NaN is impossible, since every comparison with it fails."""
    if seen.request_class not in CLASSES or not (0.0 < seen.time_s < 1e11 and 0.0 <= seen.e2e_s <= _MAX_SECONDS):
        return None
    if seen.status == PARITY:
        return _CHECKS.get(seen.parity or "")
    if seen.status != "ok":
        return _FAILED.get(seen.arm, Kind.HEARD) if seen.status in _FAILURES else Kind.HEARD
    if not _is_plausible(seen):
        return None
    if seen.arm is Arm.CONTROL or (seen.arm is Arm.SPECULATIVE and seen.reason in TREATMENT):
        return Kind.ANSWER
    if seen.arm is Arm.SPECULATIVE:
        return Kind.OTHER_ANSWER
    return Kind.DECLINED if seen.reason in _NOT_WORTH_IT else Kind.HEARD


def is_failure(seen: Observation) -> bool:
    """Whether `seen` is a request that the servers or the gateway failed, on any arm."""
    return seen.status in _FAILURES


def _is_plausible(seen: Observation) -> bool:
    return (
        1 <= seen.output_tokens <= _MAX_TOKENS
        and seen.e2e_s >= _MIN_SECONDS
        and (seen.ttft_s is None or _MIN_SECONDS <= seen.ttft_s <= seen.e2e_s)
        and 0 <= seen.accepted <= seen.drafted <= _MAX_TOKENS
        and 0.0 <= seen.load <= _MAX_SECONDS
        and (seen.price_per_gpu_hour is None or 0.0 <= seen.price_per_gpu_hour <= _MAX_PRICE)
        and (seen.priced_s is None or 0.0 <= seen.priced_s <= _MAX_SECONDS)
    )
