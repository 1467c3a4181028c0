"""Ragged batches of unlike requests for `verify`, and its answer request by request."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from slipstream_kernels import LogitAdjustments, SamplingBatch, Verification
from torch import Tensor

from tests.kernels.oracle import Floats, Rules, adjusted, distribution, draw

Verify = Callable[..., Verification]


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request's part of a batch, on the CPU.

    `logits` [k + 1, V]; `allowed` bool [k + 1, V] is its grammar.
    """

    logits: Tensor
    drafts: list[int]
    rules: Rules = field(default_factory=Rules)
    seed: int = 0
    position: int = 0
    written: tuple[int, ...] = ()
    allowed: Tensor | None = None

    @property
    def vocabulary(self) -> int:
        return self.logits.size(1)

    def scores(self, step: int) -> Floats:
        """The adjusted logits of a row, float32 [V]."""
        allowed = None if self.allowed is None else self.allowed[step].numpy()
        return adjusted(self.logits[step].float().numpy(), self.rules, (*self.written, *self.drafts[:step]), allowed)

    def target(self, step: int) -> Floats | None:
        """The distribution of a row, float64 [V]; None if it has none."""
        scores = self.scores(step)
        if np.isnan(scores).any() or not np.isfinite(scores.max()):
            return None
        return distribution(scores, self.rules)

    def agreeing(self, share: float) -> Request:
        """The same with each draft, at a chance of `share`, replaced by the token that plain decoding has there."""
        generator = np.random.default_rng(self.seed % 2**32)
        request = replace(self, drafts=list(self.drafts))
        for step in range(len(request.drafts)):  # in order: a row depends on the drafts before it
            target = request.target(step)
            if generator.random() < share and target is not None:
                request.drafts[step] = draw(target, self.seed, self.position + step)[0]
        return request


class Answer(NamedTuple):
    """The answer to one request; None for a request that failed."""

    tokens: list[int]


def make_request(
    number: int,
    *,
    vocabulary: int,
    drafts: int,
    dtype: torch.dtype = torch.float32,
    agreement: float = 0.75,
    **changes: Any,
) -> Request:
    """A request whose numbers follow from `number`. Each of its drafts is plain decoding's token at a chance of
    `agreement`, else any token."""
    generator = torch.Generator().manual_seed(number)
    logits = (2 * torch.randn(drafts + 1, vocabulary, generator=generator)).to(dtype)
    ids = torch.randint(vocabulary, (drafts,), generator=generator).tolist()
    request = Request(logits=logits, drafts=ids, seed=number * 7919, position=number % 1000)
    return replace(request, **changes).agreeing(agreement)


def verify_batch(
    verify: Verify,
    requests: Sequence[Request],
    *,
    device: str,
    drafted: int | None = None,
    gap: int = 0,
    **options: Any,
) -> list[Answer | None]:
    """One call for all of `requests`. Everything that no request owns is poisoned: `gap` rows before each request, and
    drafted ids beyond a request's draft length, of which there are `drafted` columns."""
    drafted = max(len(request.drafts) for request in requests) if drafted is None else drafted
    logits, starts = _rows([request.logits for request in requests], gap, math.nan)
    ids = torch.full((len(requests), drafted), 10**12)
    for i, request in enumerate(requests):
        ids[i, : len(request.drafts)] = torch.tensor(request.drafts, dtype=torch.int64)
    result = verify(
        logits.to(device),
        ids.to(device),
        torch.tensor([len(request.drafts) for request in requests], device=device),
        sampling_of(requests, device),
        torch.tensor([request.position for request in requests], device=device),
        row_start=starts.to(device) if gap else None,
        adjustments=adjustments_of(requests, device, gap=gap),
        **options,
    )
    return answers(result)


def answers(result: Verification) -> list[Answer | None]:
    """The answer of each request, after checking the tensors against each other."""
    token_ids, accepted, lengths = (tensor.cpu() for tensor in result)
    assert torch.equal(lengths, accepted + 1)
    used = torch.arange(token_ids.size(1)) < lengths[:, None]
    assert torch.equal(used, token_ids >= 0)
    assert bool((token_ids[~used] == -1).all())
    return [Answer(token_ids[i, :length].tolist()) if length else None for i, length in enumerate(lengths.tolist())]


def sampling_of(requests: Sequence[Request], device: str) -> SamplingBatch:
    """The sampling parameters of a batch."""
    rules = [request.rules for request in requests]
    return SamplingBatch.of(
        [r.temperature for r in rules],
        [r.top_p for r in rules],
        [r.top_k for r in rules],
        [request.seed for request in requests],
        device,
        min_p=[r.min_p for r in rules],
    )


def adjustments_of(requests: Sequence[Request], device: str, *, gap: int = 0) -> LogitAdjustments | None:
    """The adjustments of a batch, with no group that nobody uses; None if nobody uses any."""
    rules, options = [request.rules for request in requests], {}
    if any(r.bias for r in rules):
        options["bias"] = [r.bias for r in rules]
    if any(r.penalises for r in rules):
        options |= {name: [getattr(r, name) for r in rules] for name in ("repetition", "frequency", "presence")}
        options |= {"prompts": [r.prompt for r in rules], "outputs": [request.written for request in requests]}
    if any(request.allowed is not None for request in requests):
        options["allowed"] = [tokens for request in requests for tokens in [*[[]] * gap, *_allowed(request)]]
    return LogitAdjustments.of(requests[0].vocabulary, **options, device=device) if options else None


def _allowed(request: Request) -> list[list[int] | None]:
    """The tokens that the grammar allows in each row; None: all."""
    if request.allowed is None:
        return [None] * len(request.logits)
    return [row.nonzero()[:, 0].tolist() for row in request.allowed]


def _rows(blocks: Sequence[Tensor], gap: int, poison: float) -> tuple[Tensor, Tensor]:
    """All blocks below each other with `gap` poisoned rows before each, and where each starts, int64 [B]."""
    rows, starts = [], []
    for block in blocks:
        rows.append(torch.full((gap, block.size(1)), poison).to(block.dtype))
        starts.append(sum(len(part) for part in rows))
        rows.append(block)
    return torch.cat(rows), torch.tensor(starts)
