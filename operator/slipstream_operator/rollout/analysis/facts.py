"""The facts of a class, from its ledger: the values that decisions are based on."""

from __future__ import annotations

from enum import StrEnum

import msgspec
from slipstream_core.manifest.status import ArmFigures, ClassStatus, Phase

from slipstream_operator.rollout.analysis.metrics import Metric
from slipstream_operator.rollout.analysis.window import Histogram


class Verdict(StrEnum):
    """The answer to a question about a class. Too little data is an answer of its own, and never a success; that a
    class has nothing that the question is about (no streams, where first tokens are timed) is another one.

    `SHARED`: a limit is broken, and the control breaks it as often: speculation is not to blame. `UNCLEAR`: it is
    broken, and too few answers of the control are known to say who is to blame.
    """

    PASS = "pass"
    FAIL = "fail"
    NO_DATA = "no data"
    NOT_APPLICABLE = "not applicable"
    SHARED = "shared with the control"
    UNCLEAR = "unclear"


_SHOWN = ("phase", "share", "hold_back_share", "hold_back_since", "step", "since", "retries", "retry_at")


class ClassMemory(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The last state of a class as the operator remembers it, in case the status was edited.

    Times are RFC 3339. `spec_hash` and `retry_token` are those that the class was judged under. `hold_back_share`
    has been in force since `hold_back_since`; None in checkpoints of older versions.
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

    def is_shown_by(self, status: ClassStatus) -> bool:
        """Whether `status` has the same values."""
        return all(getattr(self, name) == getattr(status, name) for name in _SHOWN)


class GuardFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A guard. FAIL: alarm. `observed` is the mean of x over the `samples` answers since its doubt began, `seen` all
    of them; `limit` is that of the mean, `threshold` the policy's; `statistic` is compared with `alarm_at`.
    Of cost, `observed` is the increase over the control's of the same time, by `samples` and `control` answers.
    `control_observed` is the mean of x over the `control` answers of the control since then."""

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


class ErrorFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Failed speculative requests within the window, and those of the control. FAIL: most of them, for which no
    statistics are needed. SHARED: most of the control's, too."""

    verdict: Verdict
    failures: int
    requests: int
    limit: float
    control_failures: int = 0
    control_requests: int = 0


class GainFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The speculative answers' mean time against that of the control at the same time, since the step began: the
    `change` as a share of the control's time.

    PASS: `bound`, above the change at all times with the policy's confidence, lies below `threshold`. FAIL: there are
    answers enough, and it does not.
    """

    verdict: Verdict
    speculative: int
    control: int
    required: int
    change: float | None
    bound: float | None
    threshold: float


class LossFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A loss that was shown: speculative answers, or their first tokens, take longer than those of the control at the
    same time. `change` is the increase as a share of the control's time, `threshold` the allowed one.
    `speculative` and `control` are the numbers of answers behind it."""

    change: float
    threshold: float
    speculative: int
    control: int


class ClassFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a class. `loss` is None where none was shown, and so is `ttft_loss`, that of the first tokens.
    `last_outcome_s` is the time of its last outcome, in seconds since 1970. `complete` False: there may be outcomes
    that were not read yet. `decided_plain` is the share of the latest answers that were decoded plainly because
    speculation would not pay; `hardly_speculates`: of enough answers nearly all were. `control_needed`: whether the
    comparison with the control is open, so that more control answers would help; None where it is neither open nor
    clear."""

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
    def not_applicable(self) -> tuple[Metric, ...]:
        """The metrics that do not apply to this class."""
        return tuple(guard.metric for guard in self.guards if guard.verdict is Verdict.NOT_APPLICABLE)
