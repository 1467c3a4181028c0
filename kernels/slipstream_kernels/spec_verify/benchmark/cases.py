"""Cases of the benchmark, and inputs with a chosen acceptance rate.

Logits are normal noise in bfloat16. The logit of each drafted token is set so that the token is accepted with
probability α: the drafts do not know the noise, so that is the token's probability in its row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import torch
from torch import Tensor

from slipstream_kernels.batch import SamplingBatch

VOCABULARIES = (128_256, 151_936)
REQUESTS = (1, 8, 32, 64, 128, 256)
_LOGIT_BYTES = 2
_SPREAD = 2.0
"""Standard deviation of the logits: only the drafted token has a large probability."""
_FAR = 16.0
"""Larger than any logit of the noise."""


class Kind(Enum):
    """The kind of requests to verify."""

    SAMPLED = "sampled"
    GREEDY = "greedy"
    FILTERED = "top-k 50, top-p 0.95"
    RAGGED = "sampled, γ mixed from 0"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One line of the benchmark. `draft_tokens` is γ, or the largest γ of a ragged batch."""

    requests: int
    draft_tokens: int
    vocabulary: int
    acceptance: float
    kind: Kind = Kind.SAMPLED

    @property
    def lengths(self) -> list[int]:
        """The number of drafted tokens per request."""
        if self.kind is Kind.RAGGED:
            return [(5 * request + 3) % (self.draft_tokens + 1) for request in range(self.requests)]
        return [self.draft_tokens] * self.requests

    @property
    def rows(self) -> int:
        return sum(self.lengths) + self.requests

    @property
    def all_rows_bytes(self) -> int:
        """Bytes of all logits."""
        return self.rows * self.vocabulary * _LOGIT_BYTES

    def needed_bytes(self, accepted: Sequence[int]) -> int:
        """Bytes of logits that the answer depends on, where request i accepts `accepted[i]` tokens."""
        return sum(count + 1 for count in accepted) * self.vocabulary * _LOGIT_BYTES

    def __str__(self) -> str:
        return (
            f"{self.kind.value}, V = {self.vocabulary}, B = {self.requests}, γ = {self.draft_tokens}, "
            f"α = {self.acceptance}"
        )


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Arguments of one call of `verify`, with its names and shapes."""

    target_logits: Tensor
    draft_token_ids: Tensor
    draft_lengths: Tensor
    sampling: SamplingBatch
    positions: Tensor
    row_start: Tensor | None = None


def grid(*, quick: bool) -> Iterator[Case]:
    """The cases to time: batch sizes and vocabularies at γ = 4 and α = 0.7, then other α, γ and kinds."""
    if quick:
        yield from (_case(requests, VOCABULARIES[0]) for requests in (1, 64))
        return
    yield from (_case(requests, vocabulary) for vocabulary in VOCABULARIES for requests in REQUESTS)
    for requests in (1, 64, 128):
        case = _case(requests, VOCABULARIES[0])
        yield from (replace(case, acceptance=acceptance) for acceptance in (0.5, 0.9))
        yield from (replace(case, draft_tokens=gamma) for gamma in (3, 7))
        for kind in Kind:
            if kind is not Kind.SAMPLED:
                yield replace(case, kind=kind, draft_tokens=7 if kind is Kind.RAGGED else 4)


def _case(requests: int, vocabulary: int) -> Case:
    return Case(requests=requests, draft_tokens=4, vocabulary=vocabulary, acceptance=0.7)


def inputs(case: Case, number: int, device: torch.device | str) -> Inputs:
    """Inputs number `number` of a case, with logits, drafts, seeds and positions of their own."""
    generator = torch.Generator(device=device).manual_seed(1_000_003 * number + case.requests)
    lengths = torch.tensor(case.lengths, device=device)
    shape = (case.requests, case.draft_tokens)
    ids = torch.randint(case.vocabulary, shape, generator=generator, device=device)
    logits = torch.empty(case.rows, case.vocabulary, dtype=torch.bfloat16, device=device)
    logits.normal_(0.0, _SPREAD, generator=generator)
    valid = torch.arange(case.draft_tokens, device=device) < lengths[:, None]
    _favour(logits, ids, valid, case, generator)
    first = 10_007 * number
    return Inputs(
        target_logits=logits,
        draft_token_ids=ids,
        draft_lengths=lengths,
        sampling=_sampling(case, first, device),
        positions=torch.arange(case.requests, device=device) * 17 + first,
        row_start=(lengths + 1).cumsum(0) - lengths - 1,
    )


def _sampling(case: Case, first_seed: int, device: torch.device | str) -> SamplingBatch:
    count = case.requests
    top_p, top_k = (0.95, 50) if case.kind is Kind.FILTERED else (1.0, 0)
    temperature = 0.0 if case.kind is Kind.GREEDY else 1.0
    seeds = range(first_seed, first_seed + count)
    return SamplingBatch.of([temperature] * count, [top_p] * count, [top_k] * count, seeds, device)


def _favour(logits: Tensor, ids: Tensor, valid: Tensor, case: Case, generator: torch.Generator) -> None:
    """Give each drafted token the case's acceptance probability, in place, to about one per cent (bfloat16).

    For sampled requests it becomes the token's probability in its row. For greedy requests the token becomes the
    argmax of that share of the rows.
    """
    steps = torch.arange(ids.size(1), device=ids.device)
    counts = valid.sum(1) + 1
    rows = ((counts.cumsum(0) - counts)[:, None] + steps)[valid]
    chosen = ids[valid]
    if case.kind is Kind.GREEDY:
        kept = torch.rand(rows.shape, generator=generator, device=ids.device) < case.acceptance
        logits[rows, chosen] = torch.where(kept, _FAR, -_FAR).to(logits.dtype)
        return
    logits[rows, chosen] = -math.inf
    odds = math.log(case.acceptance / (1 - case.acceptance))
    for row_block, id_block in zip(rows.split(256), chosen.split(256), strict=True):
        others = logits[row_block].float().logsumexp(-1)
        logits[row_block, id_block] = (others + odds).to(logits.dtype)
