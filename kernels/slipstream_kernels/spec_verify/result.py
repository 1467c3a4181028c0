"""What a verification gives back."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

PADDING = -1
"""Stands in `token_ids` where nothing was emitted."""

MOST_DRAFTS = 31
"""Drafted tokens per step that the kernel takes: a request's state is a word of 64 bits, two per row."""


class Verification(NamedTuple):
    """What one step adds to each of B requests; K is how many tokens may be drafted.

    A request fails when the target's logits say nothing: a row that had to be read has a NaN, +inf, or nothing
    above -inf. It emits no token then; its neighbours are as they would be without it.
    """

    token_ids: Tensor
    """int64 [B, K + 1]: the accepted tokens, then the corrected or bonus token, then -1."""
    accepted: Tensor
    """int64 [B]: how many drafted tokens were accepted; -1 where the request failed."""
    lengths: Tensor
    """int64 [B]: how many tokens are added, `accepted` + 1: 0 where the request failed."""
    logprobs: Tensor | None
    """float32 [B, K + 1]: natural logarithm of each emitted token's probability in its row, after adjustments and
    temperature (greedy: 1) and before filters. NaN where `token_ids` is -1. None where nobody asked."""
    margins: Tensor | None
    """float32 [B, K + 1]: best minus second best adjusted logit of each emitted token's row, +inf where only one
    token is possible. NaN where `token_ids` is -1. None where nobody asked."""
