"""Estimates for one pool of servers: its times by load, and whether it counts draft tokens.

Each API key has its own, from its own answers. What other keys measured is a prior: the median over keys of their plain
times, of the ratio of speculative to plain times, and of the cost of a draft token. So one key cannot shift another
key's times, however many requests it sends, and a key's own answers soon outweigh all others.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable

from slipstream_gateway.decide.estimate import priors
from slipstream_gateway.decide.estimate.curves import Curve, Vote
from slipstream_gateway.decide.estimate.median_by_key import LEAST_OTHERS
from slipstream_gateway.decide.estimate.pooled import RunningMean

# After this many speculative answers without a single draft token, the servers are assumed not to count them.
_SILENT_ANSWERS = 3
# The weight of one answer of eight steps. A hiccup is too large a part of the time of fewer steps.
_TIMED_WEIGHT = 0.25
# The keys that vote, those that sent last: one more than the votes that a key gets.
_MAX_VOTERS = 9


class SharedPool:
    """What the API keys of one pool of servers share."""

    def __init__(self) -> None:
        self.has_counted = False
        self.version = 0
        self._models: OrderedDict[str, PoolModel] = OrderedDict()

    def learnt(self, key: str, model: PoolModel) -> None:
        """Counts an answer that `key` has recorded in its `model`."""
        self.version += 1
        self._models[key] = model
        self._models.move_to_end(key)
        if len(self._models) > _MAX_VOTERS:
            self._models.popitem(last=False)

    def others(self, key: str) -> list[PoolModel]:
        """The models of the other keys."""
        return [model for other, model in self._models.items() if other != key]


class _OtherKeys:
    """The other keys' votes on one of a model's curves. `over_plain`: they vote on its ratio to their plain steps, and
    this key's own plain steps turn that into seconds."""

    def __init__(self, model: PoolModel, curve: Callable[[PoolModel], Curve], *, over_plain: bool = False) -> None:
        self._model, self._curve, self._over_plain = model, curve, over_plain

    @property
    def version(self) -> int:
        return self._model.shared.version

    @property
    def count(self) -> int:
        """The number of votes; 0 if they are too few to count."""
        return len(self._voters())

    def votes(self, octave: int) -> list[Vote]:
        return [self._vote(other, octave) for other in self._voters()]

    def _voters(self) -> list[PoolModel]:
        known = [other for other in self._model.others() if self._curve(other).weight > 0.0]
        if self._over_plain:
            known = [other for other in known if other.plain.weight > 0.0]
        return known if len(known) >= LEAST_OTHERS else []

    def _vote(self, other: PoolModel, octave: int) -> Vote:
        line = self._curve(other).alone(octave)
        base = line.base
        if self._over_plain:
            base *= self._model.plain.line_at(octave).base / other.plain.alone(octave).base
        return Vote(math.log(base), line.slope / line.base)


class PoolModel:
    """One API key's step times, separate for batches that decode plainly and that speculate. `first_token_s` is the
    mean time to first token, which is subtracted from answers that were not streamed.

    A single line through both kinds of step would be wrong: the first draft token costs more than each later one.
    """

    def __init__(self, key: str, shared: SharedPool) -> None:
        self.shared = shared
        self._key = key
        self._other_plain = _OtherKeys(self, lambda other: other.plain_step)
        self._other_step = _OtherKeys(self, lambda other: other.step, over_plain=True)
        self.plain_step = self.plain = Curve(priors.PLAIN_STEP, self._other_plain)
        """`plain` is the curve of the pool that decodes plainly: this one or another."""
        self.step = Curve(priors.STEP, self._other_step)
        self.plain_step.lean_on(self.step, ratio=1.0 / priors.STEP_OVERHEAD)
        self.step.lean_on(self.plain_step, ratio=priors.STEP_OVERHEAD)
        self.first_token_s = RunningMean()
        self._silent = 0

    def learnt(self) -> None:
        """Lets the answers so far vote for the other keys."""
        self.shared.learnt(self._key, self)

    def others(self) -> list[PoolModel]:
        """The models of the other keys that sent last."""
        return self.shared.others(self._key)

    def other_keys(self, curve: Curve) -> int:
        """The number of other keys whose times count for `curve`, one of this model's; 0 if they are too few."""
        return (self._other_step if curve is self.step else self._other_plain).count

    @property
    def is_timed(self) -> bool:
        """Whether enough steps have been timed for a prediction in seconds."""
        own = self.plain_step.weight + self.step.weight
        return own >= _TIMED_WEIGHT or self._other_plain.count > 0

    def lean_on(self, other: PoolModel) -> None:
        """Each of the two is used while the other one has little data: the same model, probably on similar servers.
        `other` is that of the plain pool."""
        self.plain = other.plain_step
        self.plain_step.lean_on(other.plain_step)
        self.step.lean_on(other.plain_step, ratio=priors.STEP_OVERHEAD)
        other.plain_step.lean_on(self.plain_step)
        other.plain_step.lean_on(self.step, ratio=1.0 / priors.STEP_OVERHEAD)

    def step_of(self, batch_draft_length: float) -> Curve:
        """The curve for steps of a batch with that mean draft length."""
        return self.step if batch_draft_length >= 1.0 else self.plain_step

    @property
    def counts_drafts(self) -> bool:
        """False if the servers speculate and never report the number of draft tokens."""
        return self.shared.has_counted or self._silent < _SILENT_ANSWERS

    @property
    def has_counted(self) -> bool:
        """Whether draft tokens have been seen: an answer without any then had none proposed."""
        return self.shared.has_counted

    def saw_drafts(self, drafted: int) -> None:
        """Records a speculative answer of more than one token."""
        if drafted > 0:
            self.shared.has_counted = True
        else:
            self._silent += 1
