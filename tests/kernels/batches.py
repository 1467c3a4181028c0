"""Ragged batches of unlike requests for `verify`, and its answer request by request."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from slipstream_kernels import LogitAdjustments, SamplingBatch, Verification
from torch import Tensor

from tests.kernels.oracle import Rules

Verify = Callable[..., Verification]


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request's part of a batch, on the CPU.

    `logits` [k + 1, V]; `draft_logits` [k, W], None for one-hot drafts; `allowed` bool [k + 1, V] is its grammar.
    """

    logits: Tensor
    drafts: list[int]
    draft_logits: Tensor | None = None
    rules: Rules = field(default_factory=Rules)
    seed: int = 0
    position: int = 0
    written: tuple[int, ...] = ()
    allowed: Tensor | None = None

    @property
    def vocabulary(self) -> int:
        return self.logits.size(1)

    def one_hot(self) -> Request:
        """The same with drafts that say nothing of how they came about."""
        return replace(self, draft_logits=None)


class Answer(NamedTuple):
    """What one request got; None for a request that failed. The lists are as long as each other."""

    tokens: list[int]
    logprobs: list[float]
    margins: list[float] | None


def make_request(
    number: int,
    *,
    vocabulary: int,
    drafts: int,
    width: int | None = None,
    dtype: torch.dtype = torch.float32,
    **changes: Any,
) -> Request:
    """A request whose numbers follow from `number`. Its drafts are drawn from logits near the target's, `width` of
    them (V) in each row, and lie below V."""
    generator = torch.Generator().manual_seed(number)
    logits = (2 * torch.randn(drafts + 1, vocabulary, generator=generator)).to(dtype)
    draft_logits = torch.randn(drafts, width or vocabulary, generator=generator)
    common = min(vocabulary, width or vocabulary)
    draft_logits[:, :common] += logits[:-1, :common].float()
    draft_logits = draft_logits.to(dtype)
    ids = [int(torch.multinomial(row, 1, generator=generator)) for row in draft_logits[:, :common].float().softmax(-1)]
    request = Request(logits=logits, drafts=ids, draft_logits=draft_logits, seed=number * 7919, position=number % 1000)
    return replace(request, **changes)


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
    drafted ids and logits beyond a request's draft length, of which there are `drafted` columns."""
    drafted = max(len(request.drafts) for request in requests) if drafted is None else drafted
    if any(request.draft_logits is not None for request in requests):
        options["draft_logits"] = _draft_logits(requests, drafted).to(device)
        options["draft_onehot"] = torch.tensor([r.draft_logits is None for r in requests], device=device)
    logits, starts = _rows([request.logits for request in requests], gap, math.nan)
    ids = torch.full((len(requests), drafted), 10**12)
    for i, request in enumerate(requests):
        ids[i, : len(request.drafts)] = torch.tensor(request.drafts, dtype=torch.int64)
    result = verify(
        logits.to(device),
        ids.to(device),
        torch.tensor([len(request.drafts) for request in requests], device=device),
        options.pop("draft_logits", None),
        sampling_of(requests, device),
        torch.tensor([request.position for request in requests], device=device),
        row_start=starts.to(device) if gap else None,
        adjustments=adjustments_of(requests, device, gap=gap),
        **options,
    )
    return answers(result)


def answers(result: Verification) -> list[Answer | None]:
    """The answer of each request, after checking the tensors against each other."""
    token_ids, accepted, lengths, logprobs, margins = (None if tensor is None else tensor.cpu() for tensor in result)
    assert torch.equal(lengths, accepted + 1)
    used = torch.arange(token_ids.size(1)) < lengths[:, None]
    assert torch.equal(used, token_ids >= 0)
    assert bool((token_ids[~used] == -1).all())
    for floats in (logprobs, margins):
        assert floats is None or torch.equal(floats.isnan(), ~used)
    found: list[Answer | None] = []
    for i, length in enumerate(lengths.tolist()):
        columns = [None if c is None else c[i, :length].tolist() for c in (token_ids, logprobs, margins)]
        found.append(Answer(*columns) if length else None)
    return found


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


def _draft_logits(requests: Sequence[Request], drafted: int) -> Tensor:
    given = [request.draft_logits for request in requests if request.draft_logits is not None]
    padded = torch.full((len(requests), drafted, given[0].size(1)), math.nan, dtype=given[0].dtype)
    for row, request in zip(padded, requests, strict=True):
        if request.draft_logits is not None:
            row[: len(request.drafts)] = request.draft_logits
    return padded
