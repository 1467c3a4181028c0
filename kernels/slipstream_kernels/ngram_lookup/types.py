"""Values of a prompt look-up: its result, and the memory that its kernel needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

PADDING = -1


class NgramDrafts(NamedTuple):
    """The drafts of B requests."""

    token_ids: Tensor
    """int64 [B, K]: the drafted tokens, then -1."""
    lengths: Tensor
    """int64 [B]: the number of drafted tokens, equal to `most`, or 0 without a match."""


@dataclass(frozen=True, kw_only=True)
class NgramWorkspace:
    """16 bytes per request, shared by the programs of a long request. All zero between look-ups.

    Every look-up leaves the workspace zeroed, so one workspace serves a sequence of look-ups, CUDA graphs included,
    without a memset. Look-ups that may run at the same time need one workspace each.
    """

    best: Tensor
    """int64 [requests]: the best match so far; upper half: its size, lower half: start of its drafts."""
    finished: Tensor
    """int64 [requests]: the number of the request's programs that have finished."""

    @classmethod
    def of(cls, requests: int, device: torch.device | str = "cpu") -> NgramWorkspace:
        """Allocate for batches of up to `requests`."""
        best, finished = torch.zeros(2, requests, dtype=torch.int64, device=device)
        return cls(best=best, finished=finished)
