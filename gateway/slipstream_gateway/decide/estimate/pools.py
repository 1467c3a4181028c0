"""Estimates for one pool of servers: its times by load, and whether it counts draft tokens.

Each API key has its own, from its own answers. What other keys measured is a prior: the median over keys of their step
times, and of the cost of a draft token. So one key cannot shift another key's times, however many requests it sends,
and a key's own answers soon outweigh all others.
"""

from __future__ import annotations

from slipstream_gateway.decide.estimate import priors
from slipstream_gateway.decide.estimate.by_key import ByKey
from slipstream_gateway.decide.estimate.curves import Curve
from slipstream_gateway.decide.estimate.running import RunningMean

# After this many speculative answers without a single draft token, the servers are assumed not to count them.
_SILENT_ANSWERS = 3
# The weight of one answer of eight steps. A hiccup is too large a part of the time of fewer steps.
_TIMED_WEIGHT = 0.25
# The keys whose curves count, those that sent last: one more than the curves that a key gets.
_MAX_CURVES = 9


class SharedPool:
    """What the API keys of one pool of servers share. `has_counted`: an answer had draft tokens."""

    def __init__(self) -> None:
        self.has_counted = False
        self.plain_steps: ByKey[Curve] = ByKey(_MAX_CURVES)
        self.steps: ByKey[Curve] = ByKey(_MAX_CURVES)


class PoolModel:
    """One API key's step times, separate for batches that decode plainly and that speculate. `first_token_s` is the
    mean time to first token, which is subtracted from answers that were not streamed.

    A single line through both kinds of step would be wrong: the first draft token costs more than each later one.
    """

    def __init__(self, key: str, shared: SharedPool) -> None:
        self._shared = shared
        self.plain_step = Curve(priors.PLAIN_STEP, key, shared.plain_steps)
        self.step = Curve(priors.STEP, key, shared.steps)
        self.first_token_s = RunningMean()
        self._silent = 0
        self.lean_on(self)

    @property
    def is_timed(self) -> bool:
        """Whether enough steps have been timed for a prediction in seconds."""
        return self.plain_step.weight + self.step.weight >= _TIMED_WEIGHT or bool(self.plain_step.others)

    def lean_on(self, plain: PoolModel) -> None:
        """Each of the two is used while the other one has little data: the same model, probably on similar servers.
        `plain` is the model of the plain pool."""
        self.plain_step.lean_on(plain.plain_step)
        self.step.lean_on(plain.plain_step, ratio=priors.STEP_OVERHEAD)
        plain.plain_step.lean_on(self.plain_step)
        plain.plain_step.lean_on(self.step, ratio=1.0 / priors.STEP_OVERHEAD)

    def step_of(self, batch_draft_length: float) -> Curve:
        """The curve for steps of a batch with that mean draft length."""
        return self.step if batch_draft_length >= 1.0 else self.plain_step

    @property
    def counts_drafts(self) -> bool:
        """False if the servers speculate and never report the number of draft tokens."""
        return self.has_counted or self._silent < _SILENT_ANSWERS

    @property
    def has_counted(self) -> bool:
        """Whether draft tokens have been seen: an answer without any then had none proposed."""
        return self._shared.has_counted

    def saw_drafts(self, drafted: int) -> None:
        """Records a speculative answer of more than one token."""
        if drafted > 0:
            self._shared.has_counted = True
        else:
            self._silent += 1
