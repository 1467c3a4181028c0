"""Arguments of the kernels, in groups. For a member that is None, the compiler leaves its code out.

B requests, up to K drafted tokens, V tokens in the vocabulary. R = B * (K + 1) rows, numbered request * (K + 1) + step
regardless of their place in the logits. A tile is a block of consecutive tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from slipstream_kernels.adjustments import LogitAdjustments
from slipstream_kernels.batch import SamplingBatch
from slipstream_kernels.spec_verify.kernel_config import LaunchConfig
from slipstream_kernels.spec_verify.result import Verification


class Step(NamedTuple):
    """The target's logits, the drafted tokens and the sampling parameters of each request."""

    logits: Tensor
    """[N, V], rows `row_stride` apart."""
    row_stride: int
    vocabulary: int
    row_start: Tensor | None
    """int64 [B]; None: packed."""
    draft_token_ids: Tensor
    """int64 [B, K], rows `draft_stride` apart."""
    draft_stride: int
    draft_lengths: Tensor
    temperature: Tensor
    """float32 [B]."""
    seed: Tensor
    positions: Tensor


class Adjustments(NamedTuple):
    """The tensors of `LogitAdjustments`."""

    bias_offsets: Tensor | None = None
    bias_ids: Tensor | None = None
    bias_values: Tensor | None = None
    repetition: Tensor | None = None
    frequency: Tensor | None = None
    presence: Tensor | None = None
    seen_offsets: Tensor | None = None
    seen_ids: Tensor | None = None
    seen_counts: Tensor | None = None
    bitmask: Tensor | None = None
    bitmask_stride: int = 0

    @classmethod
    def of(cls, adjustments: LogitAdjustments | None) -> Adjustments:
        """The tensors of `adjustments`; all None if it is None."""
        if adjustments is None:
            return cls()
        groups = {name: getattr(adjustments, name) for name in cls._fields if name != "bitmask_stride"}
        stride = 0 if adjustments.bitmask is None else adjustments.bitmask.stride(0)
        return cls(**groups, bitmask_stride=stride)


class Filters(NamedTuple):
    """Top-k, top-p and min-p of each request; None where no request filters."""

    top_k: Tensor | None = None
    top_p: Tensor | None = None
    min_p: Tensor | None = None

    @classmethod
    def of(cls, sampling: SamplingBatch) -> Filters:
        """The filters of `sampling`."""
        if not sampling.any_filter:
            return cls()
        return cls(sampling.top_k.contiguous(), sampling.top_p.contiguous(), sampling.min_p.contiguous())


class Statistics(NamedTuple):
    """Memory that the programs share. Sums are of exp((x - max) / T), with T = 1 for greedy requests."""

    rows_done: Tensor
    """int32 [R], number of programs that have finished the row."""
    rows_finished: Tensor
    """int32 [B], number of the request's rows that are finished or skipped."""
    end: Tensor
    """int32 [B], `NO_END` less the lowest row known to end its request; 0: none is known."""
    tile_max: Tensor
    """float32 [R, tiles]."""
    tile_sum: Tensor
    """float32 [R, tiles]. The second launch replaces it by the sum of exp((x - max of the row) / T) over the kept
    tokens."""
    candidates: Tensor | None = None
    """float32 [programs, candidates], candidate logits of each program of the second launch."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One call of `verify`, ready for its kernels."""

    step: Step
    adjustments: Adjustments
    filters: Filters
    statistics: Statistics
    outputs: Verification
    requests: int
    draft_count: int
    """K."""
    tiles: int
    config: LaunchConfig
