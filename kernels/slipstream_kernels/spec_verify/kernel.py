"""`verify` with kernels in the Triton language: prepares and launches them without waiting for the device.

The kernels are compiled without fused multiply-adds. Penalised logits are then rounded product by product, as in
PyTorch, so that a greedy choice between nearly equal logits matches the PyTorch implementation.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slipstream_kernels.adjustments import LogitAdjustments
from slipstream_kernels.batch import SamplingBatch
from slipstream_kernels.spec_verify.kernel_arguments import Adjustments, Filters, Launch, Step
from slipstream_kernels.spec_verify.kernel_config import (
    PLAIN_REGISTERS,
    SPARSE_REGISTERS,
    WIDE_REGISTERS,
    LaunchConfig,
    default_config,
    tiles_of,
)
from slipstream_kernels.spec_verify.kernel_filter_rows import filter_rows
from slipstream_kernels.spec_verify.kernel_memory import new_statistics
from slipstream_kernels.spec_verify.kernel_scan import scan
from slipstream_kernels.spec_verify.result import Verification

__all__ = ["LaunchConfig", "default_config", "verify_kernel"]

_MOST_SPLITS = 2**14
"""Limit of a row's counter."""

_SEARCH_BLOCK, _SEARCH_WARPS = 8192, 16
"""Tile size and warps of the second launch, in which one program passes over a whole row several times."""

_ADJUSTED_SEARCH_BLOCK, _ADJUSTED_SEARCH_WARPS = 2048, 8
"""The same with adjusted logits: each entry of a bias or penalty costs a comparison with its whole tile."""

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
    options: dict[str, Any]

    def launch(self) -> None:
        """Launch on the current stream."""
        self.kernel[(self.programs,)](*self.arguments, **self.constants, **self.options)


def verify_kernel(
    target_logits: Tensor,
    draft_token_ids: Tensor,
    draft_lengths: Tensor,
    sampling: SamplingBatch,
    positions: Tensor,
    *,
    row_start: Tensor | None = None,
    adjustments: LogitAdjustments | None = None,
    config: LaunchConfig | None = None,
) -> Verification:
    """As `verify`, with checked arguments. `config` None selects the default configuration.

    Raises:
        ValueError: `config` is invalid.
    """
    launch = prepare(
        target_logits,
        draft_token_ids,
        draft_lengths,
        sampling,
        positions,
        row_start=row_start,
        adjustments=adjustments,
        config=config,
    )
    if launch.requests:
        # A launch goes to the current device.
        with torch.cuda.device(target_logits.device) if target_logits.is_cuda else nullcontext():
            scan_call(launch).launch()
            if launch.filters.top_k is not None:
                filter_call(launch).launch()
    return launch.outputs


def prepare(
    target_logits: Tensor,
    draft_token_ids: Tensor,
    draft_lengths: Tensor,
    sampling: SamplingBatch,
    positions: Tensor,
    *,
    row_start: Tensor | None = None,
    adjustments: LogitAdjustments | None = None,
    config: LaunchConfig | None = None,
) -> Launch:
    """Prepare the launch of `verify_kernel`, with its outputs and memory, without running anything."""
    requests, draft_count = draft_token_ids.shape
    vocabulary, device = target_logits.size(1), target_logits.device
    given, filters = Adjustments.of(adjustments), Filters.of(sampling)
    if config is None:
        config = default_config(max(1, requests), vocabulary, registers=_registers(target_logits.dtype, given))
    tiles = tiles_of(vocabulary)
    if not 0 < config.splits <= min(tiles, _MOST_SPLITS):
        raise ValueError(f"config.splits = {config.splits}: must be in 1..{min(tiles, _MOST_SPLITS)}")
    return Launch(
        step=Step(
            target_logits,
            target_logits.stride(0),
            vocabulary,
            None if row_start is None else row_start.contiguous(),
            draft_token_ids if draft_count else draft_lengths,  # an empty tensor may have no address
            draft_token_ids.stride(0),
            draft_lengths.contiguous(),
            sampling.temperature.contiguous(),
            sampling.seed.contiguous(),
            positions.contiguous(),
        ),
        adjustments=given,
        filters=filters,
        statistics=new_statistics(
            requests=requests,
            draft_count=draft_count,
            tiles=tiles,
            filters=filters.top_k is not None,
            device=device,
        ),
        outputs=_outputs(requests, draft_count + 1, device),
        requests=requests,
        draft_count=draft_count,
        tiles=tiles,
        config=config,
    )


def scan_call(launch: Launch) -> Call:
    """The launch that reads the logits and completes requests without filters."""
    config = launch.config
    return Call(
        kernel=scan,
        programs=launch.requests * (launch.draft_count + 1) * config.splits,
        arguments=(*_groups(launch), launch.requests, launch.draft_count, config.splits, launch.tiles),
        constants=_constants(launch),
        options={"num_warps": config.warps, "maxnreg": config.registers, "enable_fp_fusion": False},
    )


def filter_call(launch: Launch) -> Call:
    """The launch that completes requests with filters."""
    candidates = launch.statistics.candidates
    assert candidates is not None, "made for calls with filters"
    as_given = launch.adjustments.bias_offsets is None and launch.adjustments.seen_offsets is None
    block, warps = (_SEARCH_BLOCK, _SEARCH_WARPS) if as_given else (_ADJUSTED_SEARCH_BLOCK, _ADJUSTED_SEARCH_WARPS)
    constants = {
        "SEARCH_BLOCK": block,
        "HELD": candidates.size(1),
        "SHIFT": _ZERO_BITS[launch.step.logits.dtype] if as_given else 0,
    }
    return Call(
        kernel=filter_rows,
        programs=candidates.size(0),
        arguments=(*_groups(launch), launch.requests, launch.draft_count, launch.tiles),
        constants=_constants(launch) | constants,
        options={"num_warps": warps, "enable_fp_fusion": False},
    )


def _groups(launch: Launch) -> tuple[Any, ...]:
    return launch.step, launch.adjustments, launch.filters, launch.statistics, launch.outputs


def _constants(launch: Launch) -> dict[str, Any]:
    return {
        "VECTOR": 16 // launch.step.logits.element_size(),
        "TILES": _power_of_two(launch.tiles),
        "STEPS": _power_of_two(launch.draft_count + 1),
        "LAZY": launch.config.lazy,
    }


def _registers(dtype: torch.dtype, adjustments: Adjustments) -> int:
    """Register limit at which the loop over tiles does not spill."""
    if adjustments.bias_offsets is not None or adjustments.seen_offsets is not None:
        return SPARSE_REGISTERS
    wide = dtype == torch.float32 or adjustments.bitmask is not None
    return WIDE_REGISTERS if wide else PLAIN_REGISTERS


def _power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count` and at least 1."""
    return 1 << max(0, count - 1).bit_length()


def _outputs(requests: int, width: int, device: torch.device) -> Verification:
    def column(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    return Verification(
        token_ids=column(torch.int64, requests, width),
        accepted=column(torch.int64, requests),
        lengths=column(torch.int64, requests),
    )
