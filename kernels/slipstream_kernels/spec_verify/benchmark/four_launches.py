"""The four-launch design, written from its description: statistics, rejection, resampling of one row, insertion.

Of vLLM's model-runner-v2 sampler it is said that it (1) takes maximum and sum of exponentials of each tile of an fp32
copy of the processed logits, (2) walks the drafted tokens of each request until one is rejected, (3) resamples the row
of the first rejection with Gumbel noise, tile by tile, and (4) inserts the best tile's token. This is a re-statement
for comparison, for one-hot drafts without filters; no code of that project is in it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream_kernels.spec_verify.benchmark.cases import Inputs

_BLOCK, _WARPS = 8192, 8
_NOISY_BLOCK, _NOISY_WARPS = 1024, 4
"""Smaller where every logit takes noise and its registers."""


def processed(given: Inputs) -> Tensor:
    """The fp32 copy of the logits, [N, V], at the requests' temperatures (all the same here)."""
    return given.target_logits.float().div_(given.sampling.temperature[0])


def four_launches(given: Inputs, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Token ids [B, K + 1] and accepted counts [B] from `processed` logits."""
    requests, steps = given.draft_token_ids.shape
    rows, vocabulary = logits.shape
    tiles = triton.cdiv(vocabulary, _BLOCK)
    device = logits.device
    largest = torch.empty(rows, tiles, device=device)
    total = torch.empty_like(largest)
    _statistics[rows, tiles](logits, largest, total, vocabulary, tiles, BLOCK=_BLOCK, num_warps=_WARPS)
    ids = torch.empty(requests, steps + 1, dtype=torch.int64, device=device)
    accepted = torch.empty(requests, dtype=torch.int64, device=device)
    wide = triton.next_power_of_2(tiles)
    _reject[(requests,)](
        logits, largest, total, given.draft_token_ids, given.sampling.seed, given.positions, ids, accepted,
        steps, vocabulary, tiles, TILES=wide, num_warps=1,
    )  # fmt: skip
    parts = triton.cdiv(vocabulary, _NOISY_BLOCK)
    best = torch.empty(requests, parts, device=device)
    best_id = torch.empty(requests, parts, dtype=torch.int64, device=device)
    _resample[requests, parts](
        logits, given.draft_token_ids, given.sampling.seed, given.positions, accepted, best, best_id,
        steps, vocabulary, parts, BLOCK=_NOISY_BLOCK, num_warps=_NOISY_WARPS,
    )  # fmt: skip
    wide = triton.next_power_of_2(parts)
    _insert[(requests,)](best, best_id, accepted, ids, steps, parts, TILES=wide, num_warps=1)
    return ids, accepted


@triton.jit
def _statistics(logits, largest, total, vocabulary, tiles, BLOCK: tl.constexpr):
    """Maximum and sum of exponentials of one tile of one row."""
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tile * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row * vocabulary + at, mask=at < vocabulary, other=float("-inf"))
    most = tl.max(x, 0)
    tl.store(largest + row * tiles + tile, most)
    tl.store(total + row * tiles + tile, tl.sum(tl.exp(x - most), 0))


@triton.jit
def _reject(
    logits, largest, total, draft_ids, seeds, positions, ids, accepted, steps, vocabulary, tiles, TILES: tl.constexpr
):
    """Accept the drafted tokens of one request, in order, until one is rejected."""
    request = tl.program_id(0).to(tl.int64)
    seed, position = tl.load(seeds + request), tl.load(positions + request)
    at = tl.arange(0, TILES)
    count = 0
    going = True
    for step in range(steps):
        if going:
            row = request * (steps + 1) + step
            most = tl.load(largest + row * tiles + at, mask=at < tiles, other=float("-inf"))
            sums = tl.load(total + row * tiles + at, mask=at < tiles, other=0.0)
            top = tl.max(most, 0)
            mass = tl.sum(sums * tl.exp(most - top), 0)
            token = tl.load(draft_ids + request * steps + step)
            p = tl.exp(tl.load(logits + row * vocabulary + token) - top) / mass
            going = tl.rand(seed, (position + step).to(tl.int32)) < p
            if going:
                tl.store(ids + request * (steps + 1) + step, token)
                count += 1
    tl.store(accepted + request, count)


@triton.jit
def _resample(
    logits, draft_ids, seeds, positions, accepted, best, best_id, steps, vocabulary, tiles, BLOCK: tl.constexpr
):
    """Logit plus Gumbel noise, the best of one tile of the row that the last token comes from."""
    request, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    step = tl.load(accepted + request)
    at = tile * BLOCK + tl.arange(0, BLOCK)
    row = request * (steps + 1) + step
    x = tl.load(logits + row * vocabulary + at, mask=at < vocabulary, other=float("-inf"))
    rejected = tl.load(draft_ids + request * steps + step, mask=step < steps, other=-1)
    x = tl.where(at == rejected, float("-inf"), x)
    seed = tl.load(seeds + request) ^ (tl.load(positions + request) + step + 0x5DEECE66D)
    noise = -tl.log(-tl.log(tl.maximum(tl.rand(seed, at), 1e-10)))
    most, where = tl.max(x + noise, 0, return_indices=True)
    tl.store(best + request * tiles + tile, most)
    tl.store(best_id + request * tiles + tile, (tile * BLOCK + where).to(tl.int64))


@triton.jit
def _insert(best, best_id, accepted, ids, steps, tiles, TILES: tl.constexpr):
    """Write the best tile's token behind the accepted ones, and padding behind it."""
    request = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, TILES)
    most = tl.load(best + request * tiles + at, mask=at < tiles, other=float("-inf"))
    tile = tl.argmax(most, 0)
    count = tl.load(accepted + request)
    tl.store(ids + request * (steps + 1) + count, tl.load(best_id + request * tiles + tile))
    for step in range(count + 1, steps + 1):
        tl.store(ids + request * (steps + 1) + step, tl.full((), -1, tl.int64))
