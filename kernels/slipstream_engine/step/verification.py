"""Verifies the drafts of a step: which tokens it emits for each request, with their log-probabilities."""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Sequence_

import torch
from slipstream_kernels import SamplingBatch, Verification, verify
from slipstream_kernels.backend import Backend
from torch import Tensor

from slipstream_engine.contract.types import TokenLogprob
from slipstream_engine.drafts.sources import Drafts
from slipstream_engine.step.row_adjustments import adjustments_of
from slipstream_engine.step.sequence import Emitted, Sequence


class Verifier:
    """Verifies on the `device` of the target, whose head has `vocabulary` rows. `backend` is passed to `verify`."""

    def __init__(self, device: torch.device, vocabulary: int, backend: Backend) -> None:
        self.backend = backend
        self._device, self._vocabulary = device, vocabulary
        self._sampling: tuple[tuple[int, ...], SamplingBatch] = ((), SamplingBatch.of([], [], [], []))

    def emitted(self, logits: Tensor, sequences: Sequence_[Sequence], drafts: Drafts) -> list[Emitted]:
        """The tokens of each request: its accepted drafts and one token of the target. Empty if the target's `logits`
        [rows, vocabulary] are not finite."""
        positions = [len(sequence.tokens) for sequence in sequences]
        starts = [*itertools.accumulate((1 + count for count in drafts.lengths[:-1]), initial=0)]
        # One transfer. An even width aligns each row to 16 bytes, so the kernel is compiled for one alignment only.
        rows, width = (drafts.lengths, positions, starts), len(positions)
        columns = torch.tensor([[*row, *[0] * (width % 2)] for row in rows], device=self._device)[:, :width]
        verified = verify(
            logits,
            drafts.token_ids,
            columns[0],
            self._sampling_of(sequences),
            columns[1],
            # Without `row_start`, the kernel sums the lengths. The PyTorch implementation is faster for packed rows.
            row_start=columns[2] if columns.is_cuda else None,
            adjustments=adjustments_of(sequences, drafts, self._vocabulary, self._device),
            backend=self.backend,
        )
        return self._parts(verified, logits, sequences, starts)

    def _parts(
        self, verified: Verification, logits: Tensor, sequences: Sequence_[Sequence], starts: Sequence_[int]
    ) -> list[Emitted]:
        parts = []
        for sequence, ids, count, start in zip(
            sequences, verified.token_ids.tolist(), verified.lengths.tolist(), starts, strict=True
        ):
            own, wanted = ids[:count], sequence.request.logprobs
            scored = None if wanted is None else _logprobs(logits[start : start + count], own, wanted)
            parts.append(Emitted(own, scored))
        return parts

    def _sampling_of(self, sequences: Sequence_[Sequence]) -> SamplingBatch:
        """The batch's sampling parameters, cached while the same requests decode together."""
        key = tuple(sequence.arrival for sequence in sequences)
        if self._sampling[0] != key:
            params = [sequence.request.sampling for sequence in sequences]
            batch = SamplingBatch.of(
                [p.temperature for p in params],
                [p.top_p for p in params],
                [p.top_k for p in params],
                [p.seed for p in params],
                self._device,
                min_p=[p.min_p for p in params],
            )
            self._sampling = (key, batch)
        return self._sampling[1]


def _logprobs(logits: Tensor, token_ids: list[int], best: int) -> tuple[TokenLogprob, ...]:
    """The log-probabilities of `token_ids` in their rows of `logits` [tokens, vocabulary], and of the `best` others."""
    scores = logits.log_softmax(-1, dtype=torch.float32)
    own = scores.gather(1, torch.tensor(token_ids, device=scores.device)[:, None])[:, 0].tolist()
    top = scores.topk(best)
    columns = zip(token_ids, own, top.indices.tolist(), top.values.tolist(), strict=True)
    return tuple(
        TokenLogprob(token_id=token, logprob=value, best=tuple(zip(ids, values, strict=True)))
        for token, value, ids, values in columns
    )
