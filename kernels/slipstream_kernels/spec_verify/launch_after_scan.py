"""The launches after the scan, for requests that it cannot end: filters, sampled drafts, the block rule.

Which of them there are is known from the arguments' shapes and the batch's flags: nobody waits for the device.
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
"""Tokens that the threshold kernel looks at together: it has a row to itself, and passes over it several times."""

_ADJUSTED_ROW_BLOCK = 2048
"""The same where logits are adjusted: each entry of a bias or penalty costs a look at the whole block around it."""

_TILE_WARPS = 8

_ZERO_BITS = {torch.bfloat16: 16, torch.float16: 13, torch.float32: 0}
"""How many of the lowest bits are 0 in all logits of a type, as float32."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One launch of one kernel, over one axis."""

    kernel: Any
    programs: int
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    """What it is compiled for, beside the arguments' types."""
    warps: int

    def launch(self) -> None:
        """On the current stream."""
        self.kernel[(self.programs,)](*self.arguments, **self.constants, num_warps=self.warps, enable_fp_fusion=False)


def launch_after_scan(launch: Launch) -> None:
    """End the requests that the scan has left. There are some, by what is known without asking the device."""
    if launch.filters.top_k is not None:
        threshold_call(launch).launch()
    if launch.block_rule:
        block_call(launch).launch()
    residual_call(launch).launch()


def threshold_call(launch: Launch) -> Call:
    """What each row of a filtered request keeps, and by the standard rule whether its drafted token stands."""
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
    """How many drafted tokens stand by the block rule. Where drafts may be sampled, each tile of each row between the
    first and the last has a program that adds up what is left in it."""
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
    """The last token of every request that the scan has not ended, and all its outputs."""
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
    """Warps of a program that weighs a tile."""
    return max(1, min(_TILE_WARPS, launch.config.block // 256))


def _vector(launch: Launch) -> int:
    """How many of the target's logits a thread loads at a time: 16 bytes."""
    return 16 // launch.step.logits.element_size()


def _power_of_two(count: int) -> int:
    """The lowest power of two not below `count`, and 1 at least."""
    return 1 << max(0, count - 1).bit_length()
