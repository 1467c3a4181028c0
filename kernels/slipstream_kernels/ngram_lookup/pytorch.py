"""Prompt look-up in PyTorch: the definition, used wherever the kernel cannot run."""

from __future__ import annotations

import torch
from torch import Tensor

from slipstream_kernels.ngram_lookup.types import PADDING, NgramDrafts


def lookup(
    tokens: Tensor, lengths: Tensor, most: Tensor, *, min_ngram: int, max_ngram: int, drafts: int
) -> NgramDrafts:
    """As `ngram_lookup`, with checked arguments."""
    first = torch.zeros_like(lengths)  # [B], start of the drafts; 0: no match
    for size in range(max_ngram, min_ngram - 1, -1):
        first = torch.where(first > 0, first, _after_latest(tokens, lengths, size))
    found = (first > 0) & (most > 0)  # [B]
    counts = torch.where(found, most, 0)  # [B]
    steps = torch.arange(drafts, device=tokens.device)  # [K]
    wanted = steps < counts[:, None]  # [B, K]
    period = (lengths - first).clamp(min=1)[:, None]  # [B, 1], length of the text after the match, which repeats
    source = torch.where(wanted, first[:, None] + steps % period, 0)  # [B, K]
    # With no columns there is nothing to gather.
    copied = tokens.gather(1, source).long() if tokens.size(1) else torch.zeros_like(source)
    return NgramDrafts(torch.where(wanted, copied, PADDING), counts)


def _after_latest(tokens: Tensor, lengths: Tensor, size: int) -> Tensor:
    """Position after the latest earlier occurrence of each request's last `size` tokens: int64 [B], 0 for none.

    An occurrence counts only if a token follows it, so the last tokens do not match themselves. It may overlap them.
    """
    if tokens.size(1) <= size:
        return torch.zeros_like(lengths)
    windows = tokens.unfold(1, size, 1)  # [B, L - size + 1, size]
    own = (lengths - size).clamp(min=0)[:, None, None].expand(-1, 1, size)
    suffix = windows.gather(1, own)  # [B, 1, size]
    after = torch.arange(size, tokens.size(1) + 1, device=tokens.device)  # [L - size + 1]
    occurs = (windows == suffix).all(-1) & (after < lengths[:, None])  # [B, L - size + 1]
    return torch.where(occurs, after, 0).amax(1)
