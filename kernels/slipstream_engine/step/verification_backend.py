"""Choice of an engine's verification backend, made while the engine loads instead of at the first request."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import torch
from slipstream_kernels import SamplingBatch, verify
from slipstream_kernels.backend import Backend, use_kernel

logger = logging.getLogger(__name__)


def usable_backend(device: torch.device, dtype: torch.dtype, vocabulary: int) -> Backend:
    """The backend of `verify` on `device`: the kernel on a GPU that can run it, else the PyTorch implementation.

    Args:
        dtype: type of the target's logits.
        vocabulary: width of the target's logits.
    """
    if not use_kernel("auto", device):
        return "reference"
    return auto_if_it_works(partial(run_kernel, device, dtype, vocabulary))


def auto_if_it_works(attempt: Callable[[], object]) -> Backend:
    """`auto` if `attempt` succeeds, else `reference`, with a warning that contains the reason.

    A kernel is compiled on the machine that runs it, which takes a C compiler and a folder that allows loading code. A
    container without them must still decode.
    """
    try:
        attempt()
    except Exception as exc:  # a compiler, a loader or a driver may raise any exception
        logger.warning(
            "verification runs in PyTorch because its kernel cannot run here: %s: %s", type(exc).__name__, exc
        )
        return "reference"
    return "auto"


def run_kernel(device: torch.device, dtype: torch.dtype, vocabulary: int) -> None:
    """Verify one drafted token of a greedy and of a filtered request with the kernel, and wait for the result."""
    sampling = SamplingBatch.of([0.0, 1.0], [1.0, 0.9], [0, 0], [0, 0], device)
    ones = torch.ones(2, dtype=torch.int64, device=device)
    logits = torch.zeros(4, vocabulary, dtype=dtype, device=device)
    verify(logits, torch.zeros_like(ones)[:, None], ones, sampling, ones, backend="kernel").lengths.tolist()
