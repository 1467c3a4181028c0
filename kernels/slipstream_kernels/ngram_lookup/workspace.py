"""What the programs that share a long request tell each other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class NgramWorkspace:
    """16 bytes a request, all zero between look-ups: each look-up leaves it as it found it.

    So one workspace serves a stream of look-ups, CUDA graphs included, without a memset. Look-ups that may run at
    the same time need one each.
    """

    best: Tensor
    """int64 [requests]: the best match so far, its size in the upper half, where its drafts start in the lower."""
    finished: Tensor
    """int64 [requests]: how many of a request's programs are through."""

    @classmethod
    def of(cls, requests: int, device: torch.device | str = "cpu") -> NgramWorkspace:
        """Allocate for batches of up to `requests`."""
        best, finished = torch.zeros(2, requests, dtype=torch.int64, device=device)
        return cls(best=best, finished=finished)
