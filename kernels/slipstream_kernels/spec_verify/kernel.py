"""`verify` with kernels in the Triton language: prepares and launches them without waiting for the device.

The kernels are compiled without fused multiply-adds. Penalised logits are then rounded product by product, as in
PyTorch, so that a greedy choice between nearly equal logits matches the PyTorch implementation.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from slipstream_kernels.adjustments import LogitAdjustments
from slipstream_kernels.batch import SamplingBatch
from slipstream_kernels.spec_verify.kernel_arguments import Adjustments, Drafts, Filters, Launch, Step
from slipstream_kernels.spec_verify.kernel_config import (
    PLAIN_REGISTERS,
    SPARSE_REGISTERS,
    WIDE_REGISTERS,
    LaunchConfig,
    default_config,
)
from slipstream_kernels.spec_verify.kernel_scan import scan
from slipstream_kernels.spec_verify.launch_after_scan import launch_after_scan
from slipstream_kernels.spec_verify.result import MOST_DRAFTS, Verification
from slipstream_kernels.spec_verify.workspace import Needs, Workspace

__all__ = ["LaunchConfig", "default_config", "verify_kernel"]

_MOST_SPLITS = 2**14
"""Limit of a row's counter."""


def verify_kernel(
    target_logits: Tensor,
    draft_token_ids: Tensor,
    draft_lengths: Tensor,
    sampling: SamplingBatch,
    positions: Tensor,
    *,
    row_start: Tensor | None = None,
    adjustments: LogitAdjustments | None = None,
    margins: bool = False,
    workspace: Workspace | None = None,
    config: LaunchConfig | None = None,
) -> Verification:
    """As `verify`, with checked arguments. `config` None selects the default configuration.

    Raises:
        ValueError: more than `MOST_DRAFTS` tokens are drafted, `workspace` is too small or on another device, or
            `config` is invalid.
    """
    launch = prepare(
        target_logits,
        draft_token_ids,
        draft_lengths,
        None,
        sampling,
        positions,
        row_start=row_start,
        draft_onehot=None,
        adjustments=adjustments,
        block_verification=False,
        margins=margins,
        workspace=workspace,
        config=config,
    )
    if launch.requests == 0:
        return launch.outputs
    try:
        # A launch goes to the current device.
        with torch.cuda.device(target_logits.device) if target_logits.is_cuda else nullcontext():
            launch_scan(launch)
            if launch.drafts.logits is not None or launch.filters.top_k is not None or launch.block_rule:
                launch_after_scan(launch)
    except BaseException:  # compiling may fail or be interrupted between two launches; the error is re-raised
        # Otherwise the next call would use the state words of the first launch.
        if workspace is not None:
            workspace.clear()
        raise
    return launch.outputs


def prepare(
    target_logits: Tensor,
    draft_token_ids: Tensor,
    draft_lengths: Tensor,
    draft_logits: Tensor | None,
    sampling: SamplingBatch,
    positions: Tensor,
    *,
    row_start: Tensor | None,
    draft_onehot: Tensor | None,
    adjustments: LogitAdjustments | None,
    block_verification: bool,
    margins: bool,
    workspace: Workspace | None,
    config: LaunchConfig | None,
) -> Launch:
    """Prepare the launch of `verify_kernel`, with its outputs and memory, without running anything."""
    requests, draft_count = draft_token_ids.shape
    if draft_count > MOST_DRAFTS:
        raise ValueError(f"draft_token_ids has {draft_count} columns: the kernel takes up to {MOST_DRAFTS}")
    vocabulary, device = target_logits.size(1), target_logits.device
    given = Adjustments.of(adjustments)
    if config is None:
        config = default_config(max(1, requests), vocabulary, registers=_registers(target_logits.dtype, given))
    drafts = _drafts(draft_logits if draft_count else None, draft_onehot)
    filters = Filters.of(sampling)
    needs = Needs(
        requests=requests,
        draft_count=draft_count,
        tiles=-(-vocabulary // config.block),
        draft_tiles=-(-drafts.vocabulary // config.block),
        margins=margins,
        filters=filters.top_k is not None,
        block_rule=block_verification and draft_count > 0,
    )
    if not 0 < config.splits <= min(needs.tiles, _MOST_SPLITS):
        raise ValueError(f"config.splits = {config.splits}: must be in 1..{min(needs.tiles, _MOST_SPLITS)}")
    workspace = Workspace.of(needs, device) if workspace is None else workspace
    if workspace.device != device:
        raise ValueError(f"workspace is on {workspace.device}, target_logits is on {device}")
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
        drafts=drafts,
        adjustments=given,
        filters=filters,
        statistics=workspace.statistics(needs),
        outputs=_outputs(requests, draft_count + 1, margins, device),
        requests=requests,
        draft_count=draft_count,
        tiles=needs.tiles,
        draft_tiles=needs.draft_tiles,
        block_rule=needs.block_rule,
        config=config,
    )


def launch_scan(launch: Launch) -> None:
    """Launch the scan, which reads the logits and completes most requests."""
    config = launch.config
    programs = launch.requests * (launch.draft_count + 1) * config.splits
    scan[(programs,)](
        *scan_arguments(launch),
        **scan_constants(launch),
        num_warps=config.warps,
        maxnreg=config.registers,
        enable_fp_fusion=False,
    )


def scan_arguments(launch: Launch) -> tuple[Any, ...]:
    """Arguments of `scan`."""
    return (
        launch.step,
        launch.drafts,
        launch.adjustments,
        launch.filters,
        launch.statistics,
        launch.outputs,
        launch.requests,
        launch.draft_count,
        launch.config.splits,
        launch.tiles,
        launch.draft_tiles,
    )


def scan_constants(launch: Launch) -> dict[str, Any]:
    """Compile-time constants of `scan`."""
    return {
        "BLOCK": launch.config.block,
        "VECTOR": 16 // launch.step.logits.element_size(),
        "TILES": _power_of_two(launch.tiles),
        "DRAFT_TILES": _power_of_two(launch.draft_tiles),
        "STEPS": _power_of_two(launch.draft_count + 1),
        "LAZY": launch.config.lazy,
        "AHEAD": launch.config.stages > 1,
        "BLOCK_RULE": launch.block_rule,
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


def _drafts(logits: Tensor | None, onehot: Tensor | None) -> Drafts:
    if logits is None:
        return Drafts()
    flags = None if onehot is None else onehot.contiguous().view(torch.uint8)
    return Drafts(logits, logits.stride(0), logits.stride(1), logits.size(2), flags)


def _outputs(requests: int, width: int, margins: bool, device: torch.device) -> Verification:
    def column(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    return Verification(
        token_ids=column(torch.int64, requests, width),
        accepted=column(torch.int64, requests),
        lengths=column(torch.int64, requests),
        logprobs=column(torch.float32, requests, width),
        margins=column(torch.float32, requests, width) if margins else None,
    )
