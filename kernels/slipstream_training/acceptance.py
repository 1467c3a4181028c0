"""How many of a draft's tokens a target accepts, from finished answers: no decoding is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Acceptance(NamedTuple):
    """Speculation with a draft length, counted over whole answers."""

    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    tokens: int = 0

    def plus(self, other: Acceptance) -> Acceptance:
        return Acceptance(*(mine + its for mine, its in zip(self, other, strict=True)))

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / max(self.steps, 1)


def count_acceptance(matches: Sequence[Sequence[bool]]) -> Acceptance:
    """Replay speculation over an answer. `matches[position][i]`: the draft's choice for token i equals the target's, if
    token i is at `position` of a draft. There is a row for each position.

    The draft continues the target's text up to its first miss in a window, so one pass of each model over the finished
    answer is exact.
    """
    total = len(matches[0])
    drafted = accepted = steps = start = 0
    while start < total:
        window = range(start, min(start + len(matches), total))
        hits = next((at for at, token in enumerate(window) if not matches[at][token]), len(window))
        drafted, accepted, steps, start = drafted + len(window), accepted + hits, steps + 1, start + hits + 1
    return Acceptance(drafted=drafted, accepted=accepted, steps=steps, tokens=total)
