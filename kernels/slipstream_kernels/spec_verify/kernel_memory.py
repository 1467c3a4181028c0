"""Memory that the programs of one call share."""

from __future__ import annotations

import torch

from slipstream_kernels.spec_verify.kernel_arguments import Statistics

SEARCH_PROGRAMS = 132
"""Maximum number of concurrent programs of the second launch: the number of multiprocessors of an H200."""

CANDIDATES = 512
"""Number of candidate logits that each of these programs stores."""

_ALIGNMENT = 4
"""Counters start at multiples of this many numbers (16 bytes), because a kernel is compiled for each alignment."""


def new_statistics(*, requests: int, draft_count: int, tiles: int, filters: bool, device: torch.device) -> Statistics:
    """Counters that are 0, and arrays that are not initialised, for B requests with up to K drafted tokens."""
    rows = requests * (draft_count + 1)
    sizes = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in (rows, requests, requests)]
    rows_done, rows_finished, end = torch.zeros(sum(sizes), dtype=torch.int32, device=device).split(sizes)
    tile_max, tile_sum = (torch.empty(rows, tiles, device=device) for _ in range(2))
    return Statistics(
        rows_done=rows_done,
        rows_finished=rows_finished,
        end=end,
        tile_max=tile_max,
        tile_sum=tile_sum,
        candidates=torch.empty(min(rows, SEARCH_PROGRAMS), CANDIDATES, device=device) if filters else None,
    )
