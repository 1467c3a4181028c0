"""Estimates for one pool of servers: its times by load, and whether it counts draft tokens."""

from __future__ import annotations

from slipstream_gateway.decide.estimate import priors
from slipstream_gateway.decide.estimate.curves import Curve
from slipstream_gateway.decide.estimate.first_token import FirstToken

# After this many speculative answers without a single draft token, the servers are assumed not to count them.
_SILENT_ANSWERS = 3


class PoolModel:
    """Its step times, separate for batches that decode plainly and that speculate, and its times to first token.

    A single line through both would be wrong: the first draft token costs more than each later one.
    """

    def __init__(self) -> None:
        self.plain_step = Curve(priors.PLAIN_STEP)
        self.step = Curve(priors.STEP)
        self.plain_step.lean_on(self.step, ratio=1.0 / priors.STEP_OVERHEAD)
        self.step.lean_on(self.plain_step, ratio=priors.STEP_OVERHEAD)
        self.first_token = FirstToken()
        self._counted = self._silent = 0

    def lean_on(self, other: PoolModel) -> None:
        """`other` is used while this pool has little data: the same model, probably on similar servers."""
        self.plain_step.lean_on(other.plain_step)
        self.step.lean_on(other.plain_step, ratio=priors.STEP_OVERHEAD)
        self.first_token.curve.lean_on(other.first_token.curve)

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
