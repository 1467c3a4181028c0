"""The public function `ngram_lookup`: argument checks, then the kernel or the PyTorch implementation."""

from __future__ import annotations

import torch
from torch import Tensor

from slipstream_kernels.backend import Backend, use_kernel
from slipstream_kernels.ngram_lookup import pytorch
from slipstream_kernels.ngram_lookup.types import NgramDrafts, NgramWorkspace

LONGEST_NGRAM = 16
MOST_DRAFTS = 1024


def ngram_lookup(
    tokens: Tensor,
    lengths: Tensor,
    most: Tensor,
    *,
    min_ngram: int = 2,
    max_ngram: int = 3,
    drafts: int,
    backend: Backend = "auto",
    check_values: bool = True,
    workspace: NgramWorkspace | None = None,
) -> NgramDrafts:
    """Draft the tokens that followed the latest earlier occurrence of each request's last tokens. Writes no input.

    The last `max_ngram` tokens of a request are searched in its own text, then one token less, down to `min_ngram`. The
    longest size with an occurrence decides, and among its occurrences the latest one that a token follows. The drafts
    are the tokens after it. At the end of the text they continue from their start, since repeating text has this
    period. (Prompt look-up decoding, Saxena 2023.)

    The function serves engines that keep tokens on the GPU: nothing returns to the host before drafting, and a CUDA
    graph can capture it (with a workspace and `check_values` off). `tokens` may be the table of all slots,
    with `most` 0 for idle slots, whose rows are not read. If the host holds the tokens, an index of n-grams answers in
    constant time instead; the engine's `PromptLookup` is such an index and gives the same drafts.

    Args:
        tokens: int32 or int64 [B, L], each row contiguous. Columns beyond a request's length are never read.
        lengths: int64 [B], each in 0..L.
        most: int64 [B]: the maximum number of drafts per request, each in 0..`drafts`.
        min_ngram, max_ngram: the sizes to try, 1 to 16.
        drafts: K, the width of the result, 0 to 1024.
        backend: "auto" selects the kernel for tensors on a GPU if `triton` is installed, else PyTorch. On the CPU the
            kernel runs only in Triton's interpreter.
        check_values: read `lengths` and `most` back and check them, which waits for the GPU. If off, the caller must
            ensure that they are valid.
        workspace: memory for the kernel, from `NgramWorkspace.of`. Without it, long texts cost an allocation and a
            memset.

    Raises:
        ValueError: an argument is invalid; the message names it with both values. Nothing has been launched.
        KernelUnavailable: `backend` is "kernel" and there is no `triton` or no GPU.
    """
    _check_types(Tensor, tokens=tokens, lengths=lengths, most=most)
    _check_types(int, min_ngram=min_ngram, max_ngram=max_ngram, drafts=drafts)
    if workspace is not None:
        _check_types(NgramWorkspace, workspace=workspace)
    _check_sizes(min_ngram, max_ngram, drafts)
    _check_tensors(tokens, lengths, most, workspace)
    if check_values:
        _check_values(tokens, lengths, most, drafts)
    if not use_kernel(backend, tokens.device):
        return pytorch.lookup(tokens, lengths, most, min_ngram=min_ngram, max_ngram=max_ngram, drafts=drafts)
    from slipstream_kernels.ngram_lookup import kernel  # only here: triton is not everywhere

    return kernel.lookup(
        tokens, lengths, most, min_ngram=min_ngram, max_ngram=max_ngram, drafts=drafts, workspace=workspace
    )


def _check_types(kind: type, **given: object) -> None:
    for name, value in given.items():
        if not isinstance(value, kind):
            shown = "torch.Tensor" if kind is Tensor else kind.__name__
            raise ValueError(f"{name} is {type(value).__name__}: must be {shown}")


def _check_sizes(min_ngram: int, max_ngram: int, drafts: int) -> None:
    if not 1 <= min_ngram <= max_ngram:
        raise ValueError(f"min_ngram = {min_ngram}: must be in 1..max_ngram = {max_ngram}")
    if max_ngram > LONGEST_NGRAM:
        raise ValueError(f"max_ngram = {max_ngram}: must be at most {LONGEST_NGRAM}")
    if not 0 <= drafts <= MOST_DRAFTS:
        raise ValueError(f"drafts = {drafts}: must be in 0..{MOST_DRAFTS}")


def _check_tensors(tokens: Tensor, lengths: Tensor, most: Tensor, workspace: NgramWorkspace | None) -> None:
    if tokens.dim() != 2:
        raise ValueError(f"tokens has the shape {tuple(tokens.shape)}: must be [B, L]")
    if tokens.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"tokens is {tokens.dtype}: must be torch.int32 or torch.int64")
    if tokens.size(1) > 1 and tokens.stride(1) != 1:
        raise ValueError(f"tokens has stride {tokens.stride(1)} within a row: must be 1")
    for name, column in (("lengths", lengths), ("most", most)):
        if column.shape != tokens.shape[:1]:
            raise ValueError(f"{name} has the shape {tuple(column.shape)}: tokens has {tokens.size(0)} rows")
        if column.dtype != torch.int64:
            raise ValueError(f"{name} is {column.dtype}: must be torch.int64")
        if column.device != tokens.device:
            raise ValueError(f"{name} is on {column.device}: tokens is on {tokens.device}")
        if not column.is_contiguous():
            raise ValueError(f"{name} has stride {column.stride(0)}: must be 1")
    if workspace is not None:
        if workspace.best.device != tokens.device:
            raise ValueError(f"workspace is on {workspace.best.device}: tokens is on {tokens.device}")
        if workspace.best.size(0) < tokens.size(0):
            raise ValueError(f"workspace is for {workspace.best.size(0)} requests: tokens has {tokens.size(0)} rows")


def _check_values(tokens: Tensor, lengths: Tensor, most: Tensor, drafts: int) -> None:
    """Read both columns back in one transfer."""
    limits = (("lengths", tokens.size(1), "tokens' columns"), ("most", drafts, "drafts"))
    for (name, limit, of), column in zip(limits, torch.stack((lengths, most)).tolist(), strict=True):
        for index, value in enumerate(column):
            if not 0 <= value <= limit:
                raise ValueError(f"{name}[{index}] = {value}: must be in 0..{limit}, {of}")
