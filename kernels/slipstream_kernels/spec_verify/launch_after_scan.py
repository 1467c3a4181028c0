"""Launches after the scan, for requests that the scan cannot complete: filters, sampled drafts, the block rule.

The arguments' shapes and the batch's summary fields determine the launches, so the host does not wait for the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from slipstream_kernels.spec_verify.kernel_arguments import Launch
from slipstream_kernels.spec_verify.kernel_block import accept_block
from slipstream_kernels.spec_verify.kernel_residual import residual
from slipstream_kernels.spec_verify.kernel_threshold import threshold

_ROW_BLOCK, _ROW_WARPS = 8192, 16
"""Tile size and warps of the threshold kernel, in which one program passes over a whole row several times."""

_ADJUSTED_ROW_BLOCK = 2048
"""Tile size with adjusted logits: each entry of a bias or penalty costs a comparison with its whole tile."""

_TILE_WARPS = 8

_ZERO_BITS = {torch.bfloat16: 16, torch.float16: 13, torch.float32: 0}
"""Number of lowest bits that are 0 in all logits of a type, seen as float32."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One launch of one kernel, over one axis."""

    kernel: Any
    programs: int
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    """Compile-time constants, beside the arguments' types."""
    warps: int

    def launch(self) -> None:
        """Launch on the current stream."""
        self.kernel[(self.programs,)](*self.arguments, **self.constants, num_warps=self.warps, enable_fp_fusion=False)


def launch_after_scan(launch: Launch) -> None:
    """Complete the requests that the scan could not complete."""
    if launch.filters.top_k is not None:
        threshold_call(launch).launch()
    if launch.block_rule:
        block_call(launch).launch()
    residual_call(launch).launch()


def threshold_call(launch: Launch) -> Call:
    """Find the threshold of each row of a filtered request and, by the standard rule, judge its drafted token."""
    candidates = launch.statistics.candidates
    assert candidates is not None, "a workspace for filters has them"
    as_given = launch.adjustments.bias_offsets is None and launch.adjustments.seen_offsets is None
    block = min(_ROW_BLOCK if as_given else _ADJUSTED_ROW_BLOCK, launch.config.block)
    return Call(
        kernel=threshold,
        programs=candidates.size(0),
        arguments=(
            launch.step,
            launch.drafts,
            launch.adjustments,
            launch.filters,
            launch.statistics,
            launch.requests,
            launch.draft_count,
            launch.tiles,
        ),
        constants={
            "BLOCK": block,
            "VECTOR": _vector(launch),
            "TILES": _power_of_two(launch.tiles),
            "HELD": candidates.size(1),
            "SHIFT": _ZERO_BITS[launch.step.logits.dtype] if as_given else 0,
            "LAZY": launch.config.lazy,
            "BLOCK_RULE": launch.block_rule,
        },
        warps=max(1, min(_ROW_WARPS, block // 256)),
    )


def block_call(launch: Launch) -> Call:
    """Count the accepted drafted tokens by the block rule. Where drafts may be sampled, one program per tile of each
    row between the first and the last sums the residual mass of the tile."""
    sampled = launch.drafts.logits is not None
    parts = max(1, (launch.draft_count - 1) * launch.tiles) if sampled else 1
    return Call(
        kernel=accept_block,
        programs=launch.requests * parts,
        arguments=(
            launch.step,
            launch.drafts,
            launch.adjustments,
            launch.filters,
            launch.statistics,
            launch.draft_count,
            launch.tiles,
            parts,
        ),
        constants={
            "BLOCK": launch.config.block,
            "VECTOR": _vector(launch),
            "TILES": _power_of_two(launch.tiles),
        },
        warps=_tile_warps(launch),
    )


def residual_call(launch: Launch) -> Call:
    """Draw the last token of every request that the scan has not completed, and write its outputs."""
    return Call(
        kernel=residual,
        programs=launch.requests * launch.tiles,
        arguments=(
            launch.step,
            launch.drafts,
            launch.adjustments,
            launch.filters,
            launch.statistics,
            launch.outputs,
            launch.draft_count,
            launch.tiles,
        ),
        constants={
            "BLOCK": launch.config.block,
            "VECTOR": _vector(launch),
            "TILES": _power_of_two(launch.tiles),
            "STEPS": _power_of_two(launch.draft_count + 1),
            "BLOCK_RULE": launch.block_rule,
        },
        warps=_tile_warps(launch),
    )


def _tile_warps(launch: Launch) -> int:
    """Warps of a program that sums the weights of a tile."""
    return max(1, min(_TILE_WARPS, launch.config.block // 256))


def _vector(launch: Launch) -> int:
    """Number of target logits in a 16-byte load."""
    return 16 // launch.step.logits.element_size()


def _power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count` and at least 1."""
    return 1 << max(0, count - 1).bit_length()
