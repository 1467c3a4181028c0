"""Speculative verification: which drafted tokens stand, and the token that follows them.

Speculative sampling (Leviathan et al., 2211.17192; Chen et al., 2302.01318) for a ragged batch in which every
request has its own draft length. With p the target's and q the draft's distribution, both after temperature
and filters, a drafted token x is accepted with probability min(1, p(x) / q(x)). The first that is rejected
is replaced by a token from max(p - q, 0), normalised; when none is, a bonus token comes from p. What is
emitted has exactly the distribution p, whatever the draft. A greedy row is the case where p is one-hot: it
emits the target's argmax.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from slipstream_kernels.batch import SamplingBatch
from slipstream_kernels.counter_random import Purpose, uniform
from slipstream_kernels.filters import argmax_ids, filtered_probs
from slipstream_kernels.sampling import draw, sample

PADDING = -1


class Verification(NamedTuple):
    """What one step adds to each of B requests."""

    token_ids: Tensor
    """int64 [B, K + 1]: the accepted tokens, then the corrected or bonus token, then -1."""
    accepted: Tensor
    """int64 [B]: how many drafted tokens were accepted."""
    lengths: Tensor
    """int64 [B]: how many tokens are added, `accepted` + 1."""


def verify(
    target_logits: Tensor,
    draft_token_ids: Tensor,
    draft_lengths: Tensor,
    draft_probs: Tensor | None,
    sampling: SamplingBatch,
    positions: Tensor,
    *,
    row_start: Tensor | None = None,
    draft_onehot: Tensor | None = None,
) -> Verification:
    """Accept or reject drafted tokens and choose the one that follows. No input is written.

    Args:
        target_logits: [N, V], any float type. Request i owns `draft_lengths[i] + 1` rows from
            `row_start[i]` on; row j of them is the target's opinion after j drafted tokens. Other rows are
            never looked at.
        draft_token_ids: int64 [B, K]. What stands beyond `draft_lengths[i]` is ignored; an id that the
            target does not have is rejected. K may be 0: plain decoding.
        draft_lengths: int64 [B], each in 0..K.
        draft_probs: [B, K, W] float32, the distributions that the drafted tokens were sampled from, as
            `sample` returned them. W may differ from V: what is missing is 0. None when no draft was
            sampled (greedy draft, n-gram look-up).
        sampling: the parameters of the B requests.
        positions: int64 [B], absolute position of the first token that this step emits.
        row_start: int64 [B]. None: the rows of request 0, then those of request 1, and so on.
        draft_onehot: bool [B], requests whose drafts were not sampled although `draft_probs` is given.

    Raises:
        ValueError: shapes do not fit together.
    """
    _check_shapes(target_logits, draft_token_ids, draft_lengths, draft_probs, sampling, positions)
    if draft_token_ids.size(1) == 0:
        logits = target_logits if row_start is None else target_logits.index_select(0, row_start)
        return _plain(logits, sampling, positions)
    steps = torch.arange(draft_token_ids.size(1) + 1, device=draft_lengths.device)
    rows = _rows(target_logits.size(0), draft_lengths, row_start, steps)
    if sampling.all_greedy:
        return _verify_greedy(target_logits, draft_token_ids, draft_lengths, rows, steps)
    drafts = _Drafts.of(draft_token_ids, draft_lengths, draft_probs, draft_onehot, target_logits.size(1))
    probs = filtered_probs(target_logits, _of_rows(sampling, rows, target_logits.size(0)))
    return _verify_sampled(probs, drafts, sampling.seed, positions, rows, steps)


def _rows(total: int, draft_lengths: Tensor, row_start: Tensor | None, steps: Tensor) -> Tensor:
    """Which of the `total` rows of logits are whose, int64 [B, K + 1]."""
    if row_start is None and total == draft_lengths.numel() * steps.numel():
        # All drafts are as long as can be: known from the shape, and the usual case of a single request.
        return torch.arange(total, device=steps.device).view(-1, steps.numel())
    if row_start is None:
        counts = draft_lengths + 1
        row_start = counts.cumsum(0) - counts
    # Past its end a request points at its own last row again, never at a neighbour's.
    return row_start[:, None] + torch.minimum(steps, draft_lengths[:, None])


def _of_rows(sampling: SamplingBatch, rows: Tensor, total: int) -> SamplingBatch:
    """The parameters of each of the `total` rows of logits; anybody's for a row that nobody owns."""
    if len(sampling) == 1:
        return sampling.expand(total)
    owner = torch.zeros(total, dtype=torch.int64, device=rows.device)
    owner.scatter_(0, rows.flatten(), torch.arange(rows.numel(), device=rows.device) // rows.size(1))
    return sampling.rows(owner)


def accepts(uniforms: Tensor, target_prob: Tensor, draft_prob: Tensor) -> Tensor:
    """Whether drafted tokens are accepted: u < p / q, bool of the arguments' common shape.

    Written as u * q < p it needs no division: a token that the target never chooses is rejected even at u =
    0, one that the draft said it never chooses is accepted if the target does choose it.
    """
    return uniforms * draft_prob < target_prob


def _plain(logits: Tensor, sampling: SamplingBatch, positions: Tensor) -> Verification:
    token_ids, _ = sample(logits, sampling, positions, Purpose.TARGET)
    accepted = torch.zeros_like(token_ids)
    return Verification(token_ids[:, None], accepted, accepted + 1)


def _verify_greedy(
    logits: Tensor, draft_token_ids: Tensor, draft_lengths: Tensor, rows: Tensor, steps: Tensor
) -> Verification:
    """Accepted tokens are the target's own choices, so what is emitted is always a prefix of those."""
    best = argmax_ids(logits).take(rows)
    agreed = (best[:, :-1] == draft_token_ids) & (steps[:-1] < draft_lengths[:, None])
    accepted = _first_false(agreed, steps)
    return Verification(best.masked_fill(steps > accepted[:, None], PADDING), accepted, accepted + 1)


def _first_false(agreed: Tensor, steps: Tensor) -> Tensor:
    """How many are true before the first that is not: int64 [B], of bool [B, K]."""
    return torch.where(agreed, agreed.size(1), steps[:-1]).amin(1)


class _Drafts(NamedTuple):
    """Drafted tokens, made safe to index with."""

    ids: Tensor
    """int64 [B, K], each in 0..V-1."""
    valid: Tensor
    """bool [B, K], whether the request drafted this token and the target has it."""
    lengths: Tensor
    """int64 [B]."""
    probs: Tensor | None
    """float32 [B, K, V]; None when all are one-hot."""
    onehot: Tensor | None
    """bool [B], requests whose `probs` are to be ignored; None when there are none."""

    @classmethod
    def of(cls, ids: Tensor, lengths: Tensor, probs: Tensor | None, onehot: Tensor | None, vocabulary: int) -> _Drafts:
        safe = ids.clamp(0, vocabulary - 1)
        valid = (safe == ids) & (torch.arange(ids.size(1), device=ids.device) < lengths[:, None])
        if probs is None:
            return cls(safe, valid, lengths, None, None)
        if probs.size(2) != vocabulary:
            probs = pad(probs, (0, vocabulary - probs.size(2)))  # Drops columns if there are too many.
        return cls(safe, valid, lengths, probs, onehot)

    def chosen_probs(self) -> Tensor:
        """q of the drafted tokens, float32 [B, K]."""
        if self.probs is None:
            return torch.ones_like(self.ids, dtype=torch.float32)
        chosen = self.probs.gather(2, self.ids[:, :, None])[:, :, 0]
        return chosen if self.onehot is None else chosen.masked_fill(self.onehot[:, None], 1.0)


def _verify_sampled(
    probs: Tensor, drafts: _Drafts, seed: Tensor, positions: Tensor, rows: Tensor, steps: Tensor
) -> Verification:
    """`probs` [N, V] are the target's; `rows` [B, K + 1] says which of them are whose."""
    uniforms = uniform(seed[:, None], positions[:, None] + steps[:-1], Purpose.ACCEPT)  # [B, K]
    accept = accepts(uniforms, probs[rows[:, :-1], drafts.ids], drafts.chosen_probs()) & drafts.valid
    accepted = _first_false(accept, steps)
    rejected = accepted < drafts.lengths

    at = accepted[:, None]
    weights = _residual(probs.index_select(0, rows.gather(1, at)[:, 0]), drafts, at, rejected)
    purpose = torch.where(rejected, int(Purpose.RESIDUAL), int(Purpose.TARGET))
    token = draw(weights, uniform(seed, positions + accepted, purpose))

    token_ids = pad(drafts.ids, (0, 1)).masked_fill(steps >= at, PADDING)
    return Verification(token_ids.scatter_(1, at, token[:, None]), accepted, accepted + 1)


def _residual(target_probs: Tensor, drafts: _Drafts, at: Tensor, rejected: Tensor) -> Tensor:
    """What the last token is drawn from, [B, V]: max(p - q, 0) where a token was rejected, p elsewhere.

    Where nothing is left of p - q, which only rounding can bring about, it is p as well.

    Args:
        target_probs: p at the last token's row, [B, V].
        at: int64 [B, 1], how many drafted tokens were accepted.
        rejected: bool [B], whether one was rejected.
    """
    at = at.clamp(max=drafts.ids.size(1) - 1)
    if drafts.probs is None:
        residual = target_probs.clone()
        _drop_drafted(residual, drafts, at, rejected)
    else:
        draft_probs = drafts.probs[torch.arange(at.size(0), device=at.device), at[:, 0]]
        sampled = rejected if drafts.onehot is None else rejected & ~drafts.onehot
        # NaN counts as 0, and is made 0 before the mask, which could not remove it.
        draft_probs = draft_probs.nan_to_num_(nan=0.0)
        residual = torch.addcmul(target_probs, draft_probs, sampled[:, None], value=-1).clamp_(min=0.0)
        if drafts.onehot is not None:
            _drop_drafted(residual, drafts, at, rejected & drafts.onehot)
    return torch.where(residual.amax(-1, keepdim=True) > 0, residual, target_probs)


def _drop_drafted(residual: Tensor, drafts: _Drafts, at: Tensor, rejected: Tensor) -> None:
    """Take the drafted token out of `residual` [B, V], in place, for the requests that `rejected` [B] names."""
    chosen = drafts.ids.gather(1, at)
    drop = rejected[:, None] & drafts.valid.gather(1, at)
    residual.scatter_(1, chosen, residual.gather(1, chosen).masked_fill_(drop, 0.0))


def _check_shapes(
    target_logits: Tensor,
    draft_token_ids: Tensor,
    draft_lengths: Tensor,
    draft_probs: Tensor | None,
    sampling: SamplingBatch,
    positions: Tensor,
) -> None:
    requests = len(sampling)
    if target_logits.dim() != 2:
        raise ValueError(f"target_logits has shape {tuple(target_logits.shape)}, not [N, V]")
    if draft_token_ids.dim() != 2 or draft_token_ids.size(0) != requests:
        raise ValueError(f"draft_token_ids has shape {tuple(draft_token_ids.shape)}, not [{requests}, K]")
    for name, value in (("draft_lengths", draft_lengths), ("positions", positions)):
        if value.shape != (requests,):
            raise ValueError(f"{name} has shape {tuple(value.shape)}, not [{requests}]")
    if draft_probs is not None and draft_probs.shape[:-1] != draft_token_ids.shape:
        expected = [*draft_token_ids.shape, "W"]
        raise ValueError(f"draft_probs has shape {tuple(draft_probs.shape)}, not {expected}")
