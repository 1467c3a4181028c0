"""How clearly the target preferred a token: where two logits nearly tie, rounding may pick the other one.

The same prefix in another batch is summed up in another order, so that a greedy answer may differ there between
speculative and plain decoding although neither is wrong. The margin tells such a flip from a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor


def margins(
    logits: Tensor, rows: Sequence[int], emitted: Sequence[int], wanted: Sequence[bool]
) -> list[tuple[float, ...] | None]:
    """The gap between the two best logits at each emitted token, for the requests in `wanted`; None for the others.

    Args:
        logits: [N, V] with V > 1, before temperature and filters. Request i owns `rows[i]` consecutive rows; row j
            of them is what its token j was chosen from.
        rows: B numbers that add up to N.
        emitted: B numbers, how many tokens each request emits: at most its rows.
        wanted: B flags. Where none is set, the logits are not looked at.
    """
    if not any(wanted):
        return [None] * len(wanted)
    starts = accumulate(rows[:-1], initial=0)
    chosen = zip(starts, emitted, wanted, strict=True)
    index = [start + j for start, count, asked in chosen if asked for j in range(count)]
    best = logits.index_select(0, torch.tensor(index, dtype=torch.int64, device=logits.device)).float().topk(2).values
    gaps = iter((best[:, 0] - best[:, 1]).tolist())
    return [
        tuple(next(gaps) for _ in range(count)) if asked else None for count, asked in zip(emitted, wanted, strict=True)
    ]
