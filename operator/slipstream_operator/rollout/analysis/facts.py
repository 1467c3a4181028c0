"""The facts of a class, computed from its ledger: decisions are based on these values."""

from __future__ import annotations

from enum import StrEnum

import msgspec
from slipstream_core.manifest.status import ArmFigures, ClassStatus, Phase

from slipstream_operator.rollout.analysis.metrics import Metric
from slipstream_operator.rollout.analysis.window import Histogram

MISSED = 10
"""The number of missed parity checks in a row from which checks do not take place."""


class Verdict(StrEnum):
    """The result of a check of a class.

    `NO_DATA`: too little data, which is never a success. `NOT_APPLICABLE`: the class has no requests to check, such as
    no streams for a limit on the time to the first token. `SHARED`: a limit is broken, and the control breaks it as
    often, so speculation is not the cause. `UNCLEAR`: a limit is broken, and there are too few answers of the control
    to determine the cause. `DISPUTED`: whether a limit is broken depends on one group of keys. `OUTDATED`: there was
    enough data, but there is none of late.
    """

    PASS = "pass"
    FAIL = "fail"
    NO_DATA = "no data"
    NOT_APPLICABLE = "not applicable"
    SHARED = "shared with the control"
    UNCLEAR = "unclear"
    DISPUTED = "disputed between keys"
    OUTDATED = "out of date"


SHOWN = ("phase", "share", "hold_back_share", "hold_back_since", "step", "since", "retries", "retry_at")


class ClassMemory(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The last decided state of a class in the operator's memory, in case the status was edited.

    Times are RFC 3339. `spec_hash` is that of the whole spec that the class was judged under, `own_hash` of what
    concerns the class (empty in checkpoints of older versions), `retry_token` the token then. `hold_back_share` has
    been in force since `hold_back_since`. It is None in checkpoints of older versions.
    """

    phase: Phase
    share: float
    step: int
    since: str
    retries: int
    retry_at: str | None
    spec_hash: str
    retry_token: str | None
    hold_back_share: float | None = None
    hold_back_since: str = ""
    own_hash: str = ""

    def is_of_spec(self, other: ClassMemory) -> bool:
        """Whether both were judged under the same spec, as far as it concerns the class."""
        if self.own_hash and other.own_hash:
            return self.own_hash == other.own_hash
        return self.spec_hash == other.spec_hash

    def is_shown_by(self, status: ClassStatus) -> bool:
        """Whether `status` has the same values."""
        return all(getattr(self, name) == getattr(status, name) for name in SHOWN)


class GuardFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a guard. FAIL: the guard has an alarm.

    `observed` is the mean of x over the `samples` requests of the guard's run (see `Guard`). `seen` counts all requests
    of the guard, which needs `required` of them. `control_observed` is the mean of x over the `control` answers of the
    control in the run. `limit` is the limit of the mean, and `threshold` the policy's value. `statistic` is compared
    with `alarm_at`.

    For cost, `observed` is the increase over the control's cost at the same time. `samples` and `control` are the
    numbers of answers behind it, and `seen` is that of the arm with fewer answers.

    For parity, `missed` counts the checks that did not take place since the last one, which was at `checked_s` (seconds
    since 1970); None: there was none. `is_unchecked`: many were missed, and the last one is no evidence any more.
    """

    metric: Metric
    verdict: Verdict
    observed: float | None
    limit: float
    threshold: float
    samples: int
    seen: int
    required: int
    statistic: float = 0.0
    alarm_at: float = 0.0
    control: int = 0
    control_observed: float | None = None
    missed: int = 0
    checked_s: float | None = None
    is_unchecked: bool = False


class ErrorFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The failed requests of both arms within the window. FAIL: most speculative requests failed, so no statistical
    test is needed. SHARED: most of the control's requests failed, too."""

    verdict: Verdict
    failures: int
    requests: int
    limit: float
    control_failures: int = 0
    control_requests: int = 0


class GainFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of the arms' mean times since the step began. `change` is the speculative answers' mean time minus
    that of the control at the same time, as a share of the latter.

    `bound` is above the change, at all times with the policy's confidence. PASS: `bound` is below `threshold`. FAIL:
    there are enough answers, and `bound` is not below `threshold`.
    """

    verdict: Verdict
    speculative: int
    control: int
    required: int
    change: float | None
    bound: float | None
    threshold: float


class LossFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A shown loss: speculative answers, or their first tokens, take longer than those of the control at the same time.

    `change` is the increase as a share of the control's time, and `threshold` is the allowed increase. `speculative`
    and `control` are the numbers of answers behind `change`.
    """

    change: float
    threshold: float
    speculative: int
    control: int


class ClassFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a class.

    `loss` is the shown loss of end-to-end time, `ttft_loss` that of the time to the first token; each is None without a
    shown loss. `last_outcome_s` is the time of the last outcome, in seconds since 1970. `complete` False: some stored
    outcomes may be unread. `decided_plain` is the share of the latest answers that were decoded plainly because
    speculation would not pay. `hardly_speculates`: there are enough answers, and nearly all of them were such plain
    ones. `control_needed`: the comparison with the control is open, so more control answers would help; None if it is
    neither open nor clear.
    """

    memory: ClassMemory | None
    guards: tuple[GuardFacts, ...]
    errors: ErrorFacts
    gain: GainFacts
    loss: LossFacts | None
    ttft_loss: LossFacts | None
    speculative: ArmFigures
    control: ArmFigures
    decided_plain: float | None
    hardly_speculates: bool
    control_needed: bool | None
    explorations: int
    last_outcome_s: float | None
    e2e: Histogram
    accepts: int
    acceptance: float
    complete: bool = True

    @property
    def unchecked(self) -> GuardFacts | None:
        """The parity guard, if checks of answers do not take place."""
        return next((guard for guard in self.guards if guard.is_unchecked), None)

    @property
    def not_applicable(self) -> tuple[Metric, ...]:
        """The metrics that do not apply to this class."""
        return tuple(guard.metric for guard in self.guards if guard.verdict is Verdict.NOT_APPLICABLE)
