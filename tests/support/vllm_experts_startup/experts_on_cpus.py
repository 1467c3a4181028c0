"""A plugin of vLLM for ranks that share experts on CPUs.

vLLM's communicator for CPUs lacks two collectives of the exchange between such ranks. Here they are made of those that
it has. As on GPUs, a rank waits for all others in each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def register() -> None:
    """vLLM calls this in every process."""
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    CpuCommunicator.all_gatherv = _all_gatherv
    CpuCommunicator.reduce_scatterv = _reduce_scatterv


def _all_gatherv(self: Any, input_: Any, dim: int = 0, sizes: Sequence[int] | None = None) -> Any:
    """The tensors (size, …) of all ranks, one after the other; a list of tensors gives a list."""
    if isinstance(input_, list):
        return [_all_gatherv(self, tensor, dim, sizes) for tensor in input_]
    sizes = sizes or [len(input_)] * self.world_size
    padded = input_.new_zeros((max(sizes), *input_.shape[1:]))
    padded[: len(input_)] = input_
    found = [torch.empty_like(padded) for _ in sizes]
    torch.distributed.all_gather(found, padded, group=self.device_group)
    return torch.cat([tensor[:size] for tensor, size in zip(found, sizes, strict=True)])


def _reduce_scatterv(self: Any, input_: torch.Tensor, dim: int = -1, sizes: Sequence[int] | None = None) -> Any:
    """This rank's part of the sum over all ranks."""
    total = input_.clone()
    torch.distributed.all_reduce(total, group=self.device_group)
    sizes = sizes or [len(input_) // self.world_size] * self.world_size
    return total.split(list(sizes))[self.rank_in_group]
