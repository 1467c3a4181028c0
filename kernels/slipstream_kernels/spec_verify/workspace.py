"""Memory of the kernels: counters that are 0 between launches, and the statistics that the scan writes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from slipstream_kernels.spec_verify.kernel_arguments import Statistics
from slipstream_kernels.spec_verify.kernel_config import tiles_of

SEARCH_PROGRAMS = 132
"""Maximum number of concurrent programs of the second launch: the number of multiprocessors of an H200."""

CANDIDATES = 512
"""Number of candidate logits that each of these programs stores."""

_ALIGNMENT = 4
"""Arrays start at multiples of this many numbers (16 bytes)."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Memory needs of a call with B requests and up to K drafted tokens."""

    requests: int
    draft_count: int
    tiles: int
    margins: bool = False
    filters: bool = False

    def counters(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the int32 arrays, which are 0 between launches."""
        rows = self.requests * (self.draft_count + 1)
        return {"rows_done": (rows,), "rows_finished": (self.requests,), "end": (self.requests,)}

    def arrays(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the float32 arrays."""
        rows = self.requests * (self.draft_count + 1)
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("tile_max", "tile_sum"), (rows, self.tiles))
        if self.margins:
            shapes |= {"tile_second": (rows, self.tiles)}
        if self.filters:
            shapes |= {"candidates": (min(rows, SEARCH_PROGRAMS), CANDIDATES)}
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
        margins: bool = False,
        filters: bool = False,
        device: torch.device | str = "cuda",
    ) -> None:
        """Room for up to `requests` requests with up to `draft_count` drafted tokens each. The flags name the features
        that calls may use."""
        most = Needs(
            requests=max(1, requests),
            draft_count=draft_count,
            tiles=tiles_of(vocabulary),
            margins=margins,
            filters=filters,
        )
        self._counters = torch.zeros(_size(most.counters()), dtype=torch.int32, device=device)
        self._numbers = torch.empty(_size(most.arrays()), dtype=torch.float32, device=device)
        self._views: dict[Needs, Statistics] = {}

    @property
    def device(self) -> torch.device:
        """The device of the memory."""
        return self._counters.device

    @property
    def nbytes(self) -> int:
        """Size of the memory in bytes."""
        return self._counters.nbytes + self._numbers.nbytes

    def statistics(self, needs: Needs) -> Statistics:
        """The arrays, laid out for one call.

        Raises:
            ValueError: the workspace is too small for the call.
        """
        if needs not in self._views:
            wanted = (_size(needs.counters()), _size(needs.arrays()))
            room = (self._counters.numel(), self._numbers.numel())
            if wanted[0] > room[0] or wanted[1] > room[1]:
                raise ValueError(f"workspace has room for {room} counters and numbers, the call needs {wanted}")
            views = _views(self._counters, needs.counters()) | _views(self._numbers, needs.arrays())
            self._views[needs] = Statistics(**views)
        return self._views[needs]


def _padded(shape: tuple[int, ...]) -> int:
    return -(-prod(shape) // _ALIGNMENT) * _ALIGNMENT


def _size(shapes: dict[str, tuple[int, ...]]) -> int:
    return sum(_padded(shape) for shape in shapes.values())


def _views(memory: Tensor, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Consecutive arrays of `shapes` in `memory`."""
    views: dict[str, Tensor] = {}
    start = 0
    for name, shape in shapes.items():
        views[name] = memory[start : start + prod(shape)].view(shape)
        start += _padded(shape)
    return views
