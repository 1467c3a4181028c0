"""What a look-up finds."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

PADDING = -1


class NgramDrafts(NamedTuple):
    """The drafts of B requests."""

    token_ids: Tensor
    """int64 [B, K]: the drafted tokens, then -1."""
    lengths: Tensor
    """int64 [B]: how many were drafted: as many as asked for, or 0 where nothing was found."""
