"""Estimates for one pool of servers: its times by load, and whether it counts draft tokens."""

from __future__ import annotations

import math

from slipstream_gateway.decide.estimate import priors
from slipstream_gateway.decide.estimate.curves import Curve, Line
from slipstream_gateway.decide.estimate.shrinkage import clipped

# After this many speculative answers without a single draft token, the servers are assumed not to count them.
_SILENT_ANSWERS = 3
# Of the log ratio of the arms' times to first token: the number of answers at which half of it is trusted, the window,
# and the limit of one answer's. A queue's wait varies much more between requests than a draft adds.
_RATIO_SAMPLES, _RATIO_WINDOW, _RATIO_CLIP = 20.0, 200.0, 0.5
# The weight of one answer of eight steps. A hiccup is too large a part of the time of fewer steps.
_TIMED_WEIGHT = 0.25


class FirstToken:
    """Times to first token: a curve over load and the prompt's length in thousands of tokens for both arms, which wait
    in one queue for the same target, and the ratio by which a draft, which reads the prompt as well, prolongs them.

    Without plain requests, only the product of the two is known. A draft never shortens the time: a ratio below 1 would
    be an error of the curve, and would be taken for a gain of speculation. Before any answer was streamed, the time is
    a multiple of a plain step, of the slower one of two pools: the same for both arms.
    """

    def __init__(self, plain_step: Curve) -> None:
        self.curve = Curve(priors.FIRST_TOKEN)
        self._plain_steps = [plain_step]
        self._log_ratios = self._samples = 0.0

    def line(self, load: float, *, speculative: bool) -> Line:
        """The prediction at `load` requests in flight."""
        ratio = math.exp(self._log_ratio) if speculative else 1.0
        if not self.curve.has_data:
            ratio *= max(step.line(load).base for step in self._plain_steps) / priors.PLAIN_STEP.base
        return self.curve.line(load).scaled(ratio)

    def lean_on(self, other: FirstToken) -> None:
        """`other` is that of a pool of the same model: it is used while this one has little data."""
        self.curve.lean_on(other.curve)
        self._plain_steps.append(other._plain_steps[0])

    def learn(self, load: float, thousands: float, seconds: float, *, speculative: bool) -> None:
        """Records a time to first token."""
        expected_s = self.curve.line(load).at(thousands)
        if speculative:
            keep = 1.0 - 1.0 / _RATIO_WINDOW
            self._log_ratios = keep * self._log_ratios + clipped(math.log(seconds / expected_s), _RATIO_CLIP)
            self._samples = keep * self._samples + 1.0
            seconds /= math.exp(self._log_ratio)
        self.curve.update(load, thousands, seconds, expected_s, seconds)

    @property
    def _log_ratio(self) -> float:
        return max(self._log_ratios, 0.0) / (self._samples + _RATIO_SAMPLES)


class PoolModel:
    """Its step times, separate for batches that decode plainly and that speculate, and its times to first token.

    A single line through both kinds of step would be wrong: the first draft token costs more than each later one.
    """

    def __init__(self) -> None:
        self.plain_step = Curve(priors.PLAIN_STEP)
        self.step = Curve(priors.STEP)
        self.plain_step.lean_on(self.step, ratio=1.0 / priors.STEP_OVERHEAD)
        self.step.lean_on(self.plain_step, ratio=priors.STEP_OVERHEAD)
        self.first_token = FirstToken(self.plain_step)
        self._counted = self._silent = 0

    @property
    def is_timed(self) -> bool:
        """Whether enough steps have been timed for a prediction in seconds."""
        return self.plain_step.weight + self.step.weight >= _TIMED_WEIGHT

    def lean_on(self, other: PoolModel) -> None:
        """Each of the two is used while the other one has little data: the same model, probably on similar servers."""
        self.plain_step.lean_on(other.plain_step)
        self.step.lean_on(other.plain_step, ratio=priors.STEP_OVERHEAD)
        self.first_token.lean_on(other.first_token)
        other.plain_step.lean_on(self.plain_step)
        other.plain_step.lean_on(self.step, ratio=1.0 / priors.STEP_OVERHEAD)
        other.first_token.lean_on(self.first_token)

    def step_of(self, batch_draft_length: float) -> Curve:
        """The curve for steps of a batch with that mean draft length."""
        return self.step if batch_draft_length >= 1.0 else self.plain_step

    @property
    def counts_drafts(self) -> bool:
        """False if the servers speculate and never report the number of draft tokens."""
        return self._counted > 0 or self._silent < _SILENT_ANSWERS

    @property
    def has_counted(self) -> bool:
        """Whether draft tokens have been seen: an answer without any then had none proposed."""
        return self._counted > 0

    def saw_drafts(self, drafted: int) -> None:
        """Records a speculative answer of more than one token."""
        if drafted > 0:
            self._counted += 1
        else:
            self._silent += 1
