"""Checks of `verify`'s arguments that do not wait for a GPU: shapes, types, devices and strides."""

from __future__ import annotations

from functools import cache
from types import NoneType
from typing import NamedTuple

import torch
from torch import Tensor

from slipstream_kernels.adjustments import LogitAdjustments
from slipstream_kernels.batch import SamplingBatch

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_GROUPS = (
    (("bias_offsets", torch.int32), ("bias_ids", torch.int32), ("bias_values", torch.float32)),
    (
        ("seen_offsets", torch.int32),
        ("seen_ids", torch.int32),
        ("seen_counts", torch.int32),
        ("repetition", torch.float32),
        ("frequency", torch.float32),
        ("presence", torch.float32),
    ),
)
"""Adjustments that are given together: offsets, ids, one value per id, then one value per request."""


class Arguments(NamedTuple):
    """The arguments of `verify`, by name."""

    target_logits: Tensor
    draft_token_ids: Tensor
    draft_lengths: Tensor
    sampling: SamplingBatch
    positions: Tensor
    row_start: Tensor | None
    adjustments: LogitAdjustments | None


_TYPES = (Tensor, Tensor, Tensor, SamplingBatch, Tensor, Tensor, LogitAdjustments)
"""Types of the arguments in order."""

_OPTIONAL = ("row_start", "adjustments")


def check_form(given: Arguments) -> None:
    """Raise a ValueError that names the first invalid argument, with both values."""
    _check_types(tuple(map(type, given)))
    logits, ids = given.target_logits, given.draft_token_ids
    _check_logits(logits)
    device = logits.device
    requests = _check_sampling(given.sampling, device)
    if ids.dim() != 2 or ids.size(0) != requests:
        raise ValueError(f"draft_token_ids has shape {list(ids.shape)}: must be [{requests}, K], as sampling has it")
    _check_kind("draft_token_ids", ids, torch.int64, device)
    if ids.size(1) > 1 and ids.stride(1) != 1:
        raise ValueError(f"draft_token_ids has stride {ids.stride(1)} within a row: must be 1")
    _check_column("draft_lengths", given.draft_lengths, requests, torch.int64, device)
    _check_column("positions", given.positions, requests, torch.int64, device)
    if given.row_start is not None:
        _check_column("row_start", given.row_start, requests, torch.int64, device)
    if given.adjustments is not None:
        _check_adjustments(given.adjustments, requests, logits)


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} is {type(value).__name__}: must be a torch.Tensor")


@cache  # Each combination of types is checked once, because steps of a small model are short.
def _check_types(types: tuple[type, ...]) -> None:
    for name, found, wanted in zip(Arguments._fields, types, _TYPES, strict=True):
        if not issubclass(found, wanted) and not (found is NoneType and name in _OPTIONAL):
            shown = "torch.Tensor" if wanted is Tensor else wanted.__name__
            raise ValueError(f"{name} is {found.__name__}: must be a {shown}")


def _check_sampling(sampling: SamplingBatch, device: torch.device) -> int:
    """Check the batch and return its number of requests."""
    if sampling.fault is not None:
        raise ValueError(f"sampling.{sampling.fault}")
    if sampling.temperature.device != device:
        raise ValueError(f"sampling.temperature is on {sampling.temperature.device}: target_logits is on {device}")
    return sampling.temperature.size(0)


def _check_logits(logits: Tensor) -> None:
    if logits.dim() != 2 or logits.size(1) == 0:
        raise ValueError(f"target_logits has shape {list(logits.shape)}: must be [N, V], with a vocabulary")
    if logits.dtype not in _FLOATS:
        raise ValueError(f"target_logits is {logits.dtype}: must be one of {', '.join(map(str, _FLOATS))}")
    if logits.size(1) > 1 and logits.stride(1) != 1:
        raise ValueError(f"target_logits has stride {logits.stride(1)} within a row: must be 1")
    if logits.size(0) > 1 and logits.stride(0) < logits.size(1):
        raise ValueError(
            f"target_logits has stride {logits.stride(0)}: its rows overlap, at least {logits.size(1)} is due"
        )


def _check_kind(name: str, tensor: Tensor, dtype: torch.dtype, device: torch.device) -> None:
    if tensor.dtype != dtype:
        raise ValueError(f"{name} is {tensor.dtype}: must be {dtype}")
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}: target_logits is on {device}")


def _check_column(name: str, column: Tensor, size: int, dtype: torch.dtype, device: torch.device) -> None:
    if column.dim() != 1 or column.size(0) != size:
        raise ValueError(f"{name} has shape {list(column.shape)}: must be [{size}]")
    _check_kind(name, column, dtype, device)
    if not column.is_contiguous():
        raise ValueError(f"{name} has stride {column.stride(0)}: must be 1")


def _check_adjustments(adjustments: LogitAdjustments, requests: int, logits: Tensor) -> None:
    for names in _GROUPS:
        group = {name: (getattr(adjustments, name), dtype) for name, dtype in names}
        there = [name for name, (tensor, _) in group.items() if tensor is not None]
        for name in there:
            _check_tensor(f"adjustments.{name}", getattr(adjustments, name))
        if there and len(there) < len(group):
            missing = next(name for name in group if name not in there)
            raise ValueError(f"adjustments.{missing} is None: must be a tensor, as adjustments.{there[0]} is")
        if there:
            (offsets, ids, values), columns = names[:3], names[3:]
            entries = getattr(adjustments, ids[0]).numel()
            sizes = {offsets[0]: requests + 1, ids[0]: entries, values[0]: entries}
            for name, dtype in (offsets, ids, values, *columns):
                tensor = getattr(adjustments, name)
                _check_column(f"adjustments.{name}", tensor, sizes.get(name, requests), dtype, logits.device)
    if adjustments.bitmask is not None:
        _check_bitmask(adjustments.bitmask, logits)


def _check_bitmask(bitmask: Tensor, logits: Tensor) -> None:
    _check_tensor("adjustments.bitmask", bitmask)
    expected = [logits.size(0), (logits.size(1) + 31) // 32]
    if list(bitmask.shape) != expected:
        raise ValueError(
            f"adjustments.bitmask has shape {list(bitmask.shape)}: must be {expected} for target_logits of shape "
            f"{list(logits.shape)}"
        )
    _check_kind("adjustments.bitmask", bitmask, torch.int32, logits.device)
    if bitmask.size(1) > 1 and bitmask.stride(1) != 1:
        raise ValueError(f"adjustments.bitmask has stride {bitmask.stride(1)} within a row: must be 1")
