"""What is known of one pool of servers: its times by load, and whether it counts draft tokens."""

from __future__ import annotations

from slipstream_gateway.learning import priors
from slipstream_gateway.learning.curves import Curve

# So many speculative answers without a single draft token: the servers do not count them.
_SILENT_ANSWERS = 3


class PoolModel:
    """Step times and times to first token; the latter per arm, plain first."""

    def __init__(self) -> None:
        self.step = Curve(priors.STEP)
        self.first_token = (Curve(priors.FIRST_TOKEN), Curve(priors.FIRST_TOKEN))
        self.first_token[0].lean_on(self.first_token[1])
        self.first_token[1].lean_on(self.first_token[0])
        self._counted = self._silent = 0

    def lean_on(self, other: PoolModel) -> None:
        """`other` stands in while this pool has been asked little: the same model, most likely on alike servers."""
        self.step.lean_on(other.step)

    @property
    def counts_drafts(self) -> bool:
        """False where the servers speculate and never say how many draft tokens they made."""
        return self._counted > 0 or self._silent < _SILENT_ANSWERS

    @property
    def has_counted(self) -> bool:
        """Whether draft tokens have been seen: an answer without any then had none proposed."""
        return self._counted > 0

    def saw_drafts(self, drafted: int) -> None:
        """Note a speculative answer that has more than one token."""
        if drafted > 0:
            self._counted += 1
        else:
            self._silent += 1
