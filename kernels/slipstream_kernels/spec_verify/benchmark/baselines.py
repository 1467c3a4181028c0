"""What the kernel is compared with, for one-hot drafts of equal length at temperature 1.

Each baseline gives (token ids [B, K + 1], accepted [B]) from the same inputs, with random numbers of its own. None has
to be lossless in the hard cases: they are here for their time.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from slipstream_kernels.spec_verify.benchmark.cases import Inputs

Baseline = Callable[[Inputs], tuple[Tensor, Tensor]]

COMPILE_MODES = ("default", "max-autotune-no-cudagraphs")
_PADDING = -1


def eager(given: Inputs) -> tuple[Tensor, Tensor]:
    """PyTorch as serving engines first wrote it, after the layout of vLLM's V1 sampler.

    Probabilities in float32 for every row, a recovered token for every drafted position (argmax of probability over
    exponential noise, one row of noise per request), a bonus token for every request, whether used or not.
    """
    return by_probabilities(given.target_logits, given.draft_token_ids, given.sampling.temperature)


def by_probabilities(target_logits: Tensor, draft_ids: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """`eager` of its three tensors: [B * (K + 1), V], [B, K] and [B]."""
    requests, steps = draft_ids.shape
    logits = target_logits.float().view(requests, steps + 1, -1) / temperature[:, None, None]
    probs = logits.softmax(-1)
    noise = torch.empty_like(probs[:, 0]).exponential_()
    target, last = probs[:, :-1], probs[:, -1]
    bonus = (last / noise).argmax(-1)
    chosen = draft_ids.unsqueeze(-1)
    accept = torch.rand(draft_ids.shape, device=probs.device) < target.gather(-1, chosen).squeeze(-1)
    recovered = (target.scatter(-1, chosen, 0.0) / noise.unsqueeze(1)).argmax(-1)
    return _assemble(draft_ids, accept, torch.cat((recovered, bonus.unsqueeze(1)), 1))


def _assemble(draft_ids: Tensor, accept: Tensor, last_tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Accepted tokens [B, K] up to the first rejection, then the token of that position from [B, K + 1]."""
    accepted = accept.long().cumprod(1).sum(1, keepdim=True)
    steps = torch.arange(last_tokens.size(1), device=draft_ids.device)
    ids = torch.where(steps < accepted, pad(draft_ids, (0, 1)), last_tokens)
    return ids.masked_fill(steps > accepted, _PADDING), accepted.squeeze(1)


def compiled(mode: str) -> Baseline:
    """`eager` under `torch.compile`, for one shape: what was compiled before is forgotten."""
    torch.compiler.reset()
    fast = torch.compile(by_probabilities, mode=mode, dynamic=False, fullgraph=True)
    return lambda given: fast(given.target_logits, given.draft_token_ids, given.sampling.temperature)


def flashinfer_sampler() -> Any | None:
    """FlashInfer's `chain_speculative_sampling`; None where it is not installed."""
    try:
        return importlib.import_module("flashinfer.sampling").chain_speculative_sampling
    except ImportError:
        return None


def one_hot_draft_probs(given: Inputs) -> Tensor:
    """What FlashInfer takes for one-hot drafts, float32 [B, K, V]: made before the clock starts."""
    return one_hot(given.draft_token_ids, given.target_logits.size(-1)).float()


def target_probs(given: Inputs) -> Tensor:
    """Its other input, float32 [B, K + 1, V]: a softmax over every row."""
    requests, steps = given.draft_token_ids.shape
    probs = given.target_logits.softmax(-1, dtype=torch.float32)
    return probs.view(requests, steps + 1, -1)


def flashinfer(sampler: Any, given: Inputs, draft_probs: Tensor, probs: Tensor | None) -> tuple[Tensor, Tensor]:
    """FlashInfer's sampler; `probs` None: with the softmax that makes its input."""
    probs = target_probs(given) if probs is None else probs
    ids, _, emitted = sampler(draft_probs, given.draft_token_ids.int(), probs)
    return ids, emitted
