"""How many of a draft's tokens a target accepts, from finished answers: no decoding is needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from slipstream_engine.draft_training.batches import Row
from slipstream_engine.draft_training.llama import Llama


class Acceptance(NamedTuple):
    """Speculation with a draft length, counted over whole answers. `matches`: tokens that are the draft's choice."""

    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    tokens: int = 0
    matches: int = 0

    def plus(self, other: Acceptance) -> Acceptance:
        return Acceptance(*(mine + its for mine, its in zip(self, other, strict=True)))

    def rates(self) -> dict[str, float]:
        """`alpha` = accepted / drafted; `match` = share of single tokens that the draft predicts."""
        return {
            "alpha": self.accepted / max(self.drafted, 1),
            "match": self.matches / max(self.tokens, 1),
            "tokens_per_step": self.tokens / max(self.steps, 1),
        }


def count_acceptance(matches: Sequence[bool], gamma: int) -> Acceptance:
    """Replay speculation over an answer. `matches[i]`: the draft's first choice for token i equals the target's.

    The draft continues the target's text up to its first miss in a window, so one pass of each model over the finished
    answer is exact.
    """
    drafted = accepted = steps = position = 0
    while position < len(matches):
        window = matches[position : position + gamma]
        run = next((index for index, match in enumerate(window) if not match), len(window))
        drafted, accepted, steps, position = (
            drafted + len(window),
            accepted + run,
            steps + 1,
            position + run + 1,
        )
    return Acceptance(drafted=drafted, accepted=accepted, steps=steps, tokens=len(matches), matches=sum(matches))


@torch.no_grad()
def draft_matches(draft: Llama, row: Row) -> list[bool]:
    """For each token of the answer: whether it is the draft's first choice."""
    ids = torch.as_tensor(row.ids, dtype=torch.int64, device=draft.cos.device)
    logits: Tensor = draft(ids[None])[0]
    choices = logits[row.prompt_tokens - 1 : -1].argmax(-1)
    return [bool(match) for match in (choices == ids[row.prompt_tokens :]).tolist()]


def acceptance(draft: Llama, rows: Iterable[Row], gamma: int) -> Acceptance:
    """The acceptance of `draft` on the answers of `rows`."""
    total = Acceptance()
    for row in rows:
        total = total.plus(count_acceptance(draft_matches(draft, row), gamma))
    return total
