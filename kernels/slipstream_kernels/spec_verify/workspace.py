"""Memory of the kernels: counters that are 0 between launches, and the statistics that the scan writes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from slipstream_kernels.spec_verify.kernel_arguments import Statistics
from slipstream_kernels.spec_verify.kernel_config import default_config

SEARCH_PROGRAMS = 132
"""Maximum number of concurrent threshold programs: the number of multiprocessors of an H200."""

CANDIDATES = 512
"""Number of candidate logits that each threshold program stores."""

_ALIGNMENT = 4
"""Arrays start at multiples of this many numbers (16 bytes)."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Memory needs of a call with B requests and up to K drafted tokens."""

    requests: int
    draft_count: int
    tiles: int
    draft_tiles: int = 0
    """0 for one-hot drafts."""
    margins: bool = False
    filters: bool = False
    block_rule: bool = False

    def counters(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the int32 arrays, which are 0 between launches."""
        rows = self.requests * (self.draft_count + 1)
        return {"rows_done": (rows,), "rows_finished": (self.requests,), "weights_done": (self.requests,)}

    def arrays(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the float32 arrays."""
        rows, drafts = self.requests * (self.draft_count + 1), self.requests * self.draft_count
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("tile_max", "tile_sum"), (rows, self.tiles))
        shapes |= dict.fromkeys(("drafted", "row_max", "row_sum", "row_logprob"), (rows,))
        if self.margins:
            shapes |= {"tile_second": (rows, self.tiles), "row_margin": (rows,)}
        if self.draft_tiles:
            shapes |= dict.fromkeys(("draft_max", "draft_sum"), (drafts, self.draft_tiles))
            shapes |= dict.fromkeys(("draft_row_max", "draft_row_sum"), (drafts,))
        if self.filters:
            shapes |= {"threshold": (rows,), "kept_mass": (rows,)}
            shapes |= {"candidates": (min(rows, SEARCH_PROGRAMS), CANDIDATES)}
        if self.block_rule:
            shapes |= {"draft_scale": (self.requests,)}
            shapes |= {"block_mass": (drafts, self.tiles)} if self.draft_tiles else {}
        if self.draft_tiles or self.filters or self.block_rule:
            shapes |= {"weight": (self.requests, self.tiles)}
        return shapes


class Workspace:
    """Memory for consecutive calls of `verify` on one stream. With it, a call allocates only its outputs, and a CUDA
    graph can capture the call. Every call writes the workspace; the host never reads it.

    An interrupted launch (a reset device) leaves counters that are not 0. Create a new workspace then.
    """

    def __init__(
        self,
        requests: int,
        draft_count: int,
        vocabulary: int,
        *,
        draft_vocabulary: int = 0,
        margins: bool = False,
        filters: bool = False,
        block_verification: bool = False,
        block: int | None = None,
        device: torch.device | str = "cuda",
    ) -> None:
        """Room for up to `requests` requests with up to `draft_count` drafted tokens each.

        `draft_vocabulary` is W of the draft's logits, or 0 without them. The flags name the features that calls may
        use. `block` is the smallest tile size of the calls' configurations; None for the default configurations.
        """

        def needs(count: int) -> Needs:
            tile = default_config(count, vocabulary).block if block is None else block
            return Needs(
                requests=count,
                draft_count=draft_count,
                tiles=-(-vocabulary // tile),
                draft_tiles=-(-draft_vocabulary // tile),
                margins=margins,
                filters=filters,
                block_rule=block_verification,
            )

        every = [needs(count) for count in range(1, max(1, requests) + 1)]
        self._state = torch.zeros(max(1, requests), dtype=torch.int64, device=device)
        counters = max(_size(each.counters()) for each in every)
        self._counters = torch.zeros(counters, dtype=torch.int32, device=device)
        self._numbers = torch.empty(max(_size(each.arrays()) for each in every), dtype=torch.float32, device=device)
        self._views: dict[Needs, Statistics] = {}

    @classmethod
    def of(cls, needs: Needs, device: torch.device) -> Workspace:
        """A workspace of the exact size of one call."""
        made = cls.__new__(cls)
        made._state = torch.zeros(needs.requests, dtype=torch.int64, device=device)
        made._counters = torch.zeros(_size(needs.counters()), dtype=torch.int32, device=device)
        made._numbers = torch.empty(_size(needs.arrays()), dtype=torch.float32, device=device)
        made._views = {}
        return made

    @property
    def device(self) -> torch.device:
        """The device of the memory."""
        return self._state.device

    def clear(self) -> None:
        """Zero state and counters, in stream order."""
        self._state.zero_()
        self._counters.zero_()

    @property
    def nbytes(self) -> int:
        """Size of the memory in bytes."""
        return sum(part.nbytes for part in (self._state, self._counters, self._numbers))

    def statistics(self, needs: Needs) -> Statistics:
        """The arrays, laid out for one call.

        Raises:
            ValueError: the workspace is too small for the call.
        """
        if needs not in self._views:
            counters, arrays = _size(needs.counters()), _size(needs.arrays())
            room = (self._state.numel(), self._counters.numel(), self._numbers.numel())
            if needs.requests > room[0] or counters > room[1] or arrays > room[2]:
                wanted = (needs.requests, counters, arrays)
                raise ValueError(f"workspace has room for {room} states, counters and numbers, the call needs {wanted}")
            views = _views(self._counters, needs.counters()) | _views(self._numbers, needs.arrays())
            missing: dict[str, Any] = dict.fromkeys(Statistics._fields)
            self._views[needs] = Statistics(**(missing | views | {"state": self._state[: needs.requests]}))
        return self._views[needs]


def _padded(shape: tuple[int, ...]) -> int:
    return -(-prod(shape) // _ALIGNMENT) * _ALIGNMENT


def _size(shapes: dict[str, tuple[int, ...]]) -> int:
    return sum(_padded(shape) for shape in shapes.values())


def _views(memory: Tensor, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor | None]:
    """Consecutive arrays of `shapes` in `memory`."""
    views: dict[str, Tensor | None] = {}
    start = 0
    for name, shape in shapes.items():
        views[name] = memory[start : start + prod(shape)].view(shape)
        start += _padded(shape)
    return views
