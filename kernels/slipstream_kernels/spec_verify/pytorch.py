"""Verification in PyTorch: the implementation for CPUs and for GPUs without `triton`, and the kernel's definition.

Speculative sampling (Leviathan et al., 2211.17192; Chen et al., 2302.01318) for a ragged batch in which every request
has its own draft length. Let p be the target's distribution after adjustments, temperature and filters, and q the
draft's distribution. A drafted token x is accepted with probability min(1, p(x) / q(x)). The first rejected token is
replaced by a token from max(p - q, 0), normalised. If none is rejected, a bonus token is drawn from p. The emitted
tokens have exactly the distribution p, for any draft. For a greedy request p is one-hot, so the target's argmax is
emitted.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from slipstream_kernels.adjustments import LogitAdjustments, adjusted
from slipstream_kernels.autograd import without_grad
from slipstream_kernels.batch import SamplingBatch
from slipstream_kernels.counter_random import Purpose, step_purpose, uniform
from slipstream_kernels.filters import filtered, scaled
from slipstream_kernels.sampling import draw
from slipstream_kernels.spec_verify import block
from slipstream_kernels.spec_verify.result import PADDING, Verification


@without_grad
def verify_pytorch(
    target_logits: Tensor,
    draft_token_ids: Tensor,
    draft_lengths: Tensor,
    draft_logits: Tensor | None,
    sampling: SamplingBatch,
    positions: Tensor,
    *,
    row_start: Tensor | None,
    draft_onehot: Tensor | None,
    adjustments: LogitAdjustments | None,
    block_verification: bool,
    margins: bool,
    logprobs: bool,
) -> Verification:
    """As `verify`, with checked arguments."""
    requests, drafted = draft_token_ids.shape
    if drafted == 0 and adjustments is None and row_start is None:
        # A short path for plain decoding, where the overhead would be largest.
        return _verify_plain(target_logits[:requests], sampling, positions, margins=margins, logprobs=logprobs)
    steps = torch.arange(drafted + 1, device=draft_lengths.device)
    rows = _rows(draft_lengths, row_start, steps)
    logits = target_logits
    if adjustments is not None:
        logits = adjusted(target_logits, adjustments, rows, draft_token_ids)
    if drafted == 0:
        return _verify_plain(logits[rows[:, 0]], sampling, positions, margins=margins, logprobs=logprobs)
    if sampling.all_greedy:
        result = _verify_greedy(logits, draft_token_ids, draft_lengths, rows, steps, logprobs=logprobs)
    else:
        target = _Target.of(logits, _of_rows(sampling, rows, logits.size(0)), logprobs=logprobs)
        drafts = _Drafts.of(draft_token_ids, draft_lengths, draft_logits, draft_onehot, steps, logits.size(1))
        result = _verify_sampled(target, drafts, sampling, positions, rows, steps, in_blocks=block_verification)
    return result._replace(margins=_margins(logits, result.token_ids, rows)) if margins else result


def _rows(draft_lengths: Tensor, row_start: Tensor | None, steps: Tensor) -> Tensor:
    """The rows of logits of each request: int64 [B, K + 1], padded with the request's last row."""
    within = torch.minimum(steps, draft_lengths[:, None])
    if row_start is None:
        if draft_lengths.size(0) == 1:
            return within
        counts = draft_lengths + 1
        row_start = counts.cumsum(0).sub_(counts)
    return within.add_(row_start[:, None])


def _verify_plain(
    logits: Tensor, sampling: SamplingBatch, positions: Tensor, *, margins: bool, logprobs: bool
) -> Verification:
    """Without drafts: one token from each request's single row in `logits` [B, V]."""
    if sampling.all_greedy:
        best, tokens = logits.max(-1)
        healthy, chances = _finite(best), _best_logprobs(logits) if logprobs else None
    else:
        target = _Target.of(logits, sampling, logprobs=logprobs)
        tokens = draw(target.probs, uniform(sampling.seed, positions, Purpose.TARGET)).clamp_(max=logits.size(1) - 1)
        healthy, chances = target.healthy, target.logprobs_of(torch.arange(tokens.size(0)).to(tokens.device), tokens)
    steps = torch.zeros_like(tokens)
    chances = None if chances is None else chances[:, None]
    result = _result(tokens[:, None], steps, healthy, chances, steps[:1])
    return result._replace(margins=_margins(logits, result.token_ids)) if margins else result


def _verify_greedy(
    logits: Tensor, draft_token_ids: Tensor, draft_lengths: Tensor, rows: Tensor, steps: Tensor, *, logprobs: bool
) -> Verification:
    """Verify greedy requests. Accepted tokens equal the target's choices, so the output is a prefix of the choices."""
    best, ids = logits.max(-1)
    best_ids, healthy = ids.take(rows), _finite(best)  # [B, K + 1], [N]
    agreed = (best_ids[:, :-1] == draft_token_ids) & (steps[:-1] < draft_lengths[:, None])
    if healthy is not None:
        healthy = healthy.take(rows)
        agreed = agreed & healthy[:, :-1]
    accepted = _first_false(agreed, steps)
    healthy = None if healthy is None else healthy.gather(1, accepted[:, None])[:, 0]
    return _result(best_ids, accepted, healthy, _best_logprobs(logits).take(rows) if logprobs else None, steps)


def _best_logprobs(logits: Tensor) -> Tensor:
    """The log-probability of each row's best token, float32 [N]."""
    return logits.log_softmax(-1, dtype=torch.float32).amax(-1)


def _finite(best: Tensor) -> Tensor | None:
    """Whether each row has a distribution, bool [N], judged by its largest logit: NaN, +inf and -inf have none. On the
    CPU the result is None if all rows have one, which is nearly always the case and makes masks unnecessary."""
    if best.device.type == "cpu" and math.isfinite(best.sum(dtype=torch.float32).item()):
        return None
    return best - best == 0


def _first_false(agreed: Tensor, steps: Tensor) -> Tensor:
    """Number of true values before the first false one: int64 [B], from bool [B, K]."""
    return torch.where(agreed, agreed.size(1), steps[:-1]).amin(1)


class _Target(NamedTuple):
    """Distributions of the target's N rows of logits."""

    probs: Tensor
    """float32 [N, V]."""
    scores: Tensor
    """float32 [N, V]: (adjusted logits - best of the row) / temperature."""
    log_best: Tensor | None
    """float32 [N], the log-probability of each row's best token before filters."""
    healthy: Tensor | None
    """bool [N]: whether the row has a distribution; None if all have one. Rows without one are NaN everywhere."""

    @classmethod
    def of(cls, logits: Tensor, sampling: SamplingBatch, *, logprobs: bool) -> _Target:
        """`sampling` has one entry per row."""
        x = logits.to(torch.float32)
        best = x.amax(-1)
        scores = scaled(x, sampling, best)
        probs = scores.softmax(-1)
        log_best = probs.amax(-1).log() if logprobs else None
        return cls(filtered(probs, scores, sampling), scores, log_best, _finite(best))

    def logprobs_of(self, rows: Tensor, token_ids: Tensor) -> Tensor | None:
        """Log-probability of one token per entry of `rows`, float32 in the shape of `rows`."""
        return None if self.log_best is None else self.scores[rows, token_ids].add_(self.log_best.take(rows))


def _of_rows(sampling: SamplingBatch, rows: Tensor, total: int) -> SamplingBatch:
    """The parameters of each of the `total` rows of logits; arbitrary ones for rows without an owner."""
    if len(sampling) == 1:
        return sampling.expand(total)
    owner = torch.zeros(total, dtype=torch.int64, device=rows.device)
    owner.scatter_(0, rows.flatten(), torch.arange(rows.numel(), device=rows.device) // rows.size(1))
    return sampling.rows(owner)


class _Drafts(NamedTuple):
    """Drafted tokens, made safe to index with."""

    ids: Tensor
    """int64 [B, K], each in 0..V-1."""
    valid: Tensor
    """bool [B, K], whether the request drafted this token and it is in the target's vocabulary."""
    lengths: Tensor
    """int64 [B]."""
    probs: Tensor | None
    """float32 [B, K, V]; None when all are one-hot."""
    chosen: Tensor
    """q of the drafted tokens, float32 [B, K]."""
    onehot: Tensor | None
    """bool [B, K]: ignore `probs`, which may be NaN, and use the one-hot rule, which is correct for any drafted token.
    True where the request did not sample or the draft's row has no distribution. None if uniform."""

    @classmethod
    def of(
        cls,
        ids: Tensor,
        lengths: Tensor,
        logits: Tensor | None,
        onehot: Tensor | None,
        steps: Tensor,
        vocabulary: int,
    ) -> _Drafts:
        safe = ids.clamp(0, vocabulary - 1)
        valid = (safe == ids) & (steps[:-1] < lengths[:, None])
        if logits is None:
            return cls(safe, valid, lengths, None, torch.ones_like(ids, dtype=torch.float32), None)
        probs = logits.softmax(-1, dtype=torch.float32)
        if probs.size(2) != vocabulary:
            probs = pad(probs, (0, vocabulary - probs.size(2)))  # Drops columns if there are too many.
        chosen = probs.gather(2, safe[:, :, None])[:, :, 0]
        ignored = probs[:, :, 0].isnan()  # NaN in one column means NaN in the whole row.
        if onehot is not None:
            ignored = ignored | onehot[:, None]
        if ids.device.type == "cpu" and not bool(ignored.any()):
            return cls(safe, valid, lengths, probs, chosen, None)
        return cls(safe, valid, lengths, probs, chosen.masked_fill(ignored, 1.0), ignored)


def accepts(uniforms: Tensor, target_prob: Tensor, draft_prob: Tensor) -> Tensor:
    """Whether drafted tokens are accepted: u < p / q, bool of the arguments' common shape.

    The form u * q < p needs no division. A token with p = 0 is rejected even at u = 0. A token with q = 0 is accepted
    if p > 0. A token is never accepted where p is NaN.
    """
    return uniforms * draft_prob < target_prob


def _verify_sampled(
    target: _Target,
    drafts: _Drafts,
    sampling: SamplingBatch,
    positions: Tensor,
    rows: Tensor,
    steps: Tensor,
    *,
    in_blocks: bool,
) -> Verification:
    seed, at = sampling.seed[:, None], positions[:, None] + steps[:-1]
    uniforms = uniform(seed, at, Purpose.ACCEPT)  # [B, K]
    p = target.probs[rows[:, :-1], drafts.ids]
    healthy = None if target.healthy is None else target.healthy.take(rows)
    stands = accepts(uniforms, p, drafts.chosen) & drafts.valid
    # p is NaN in a row without a distribution, except for a greedy request, whose p is one-hot.
    accepted = _first_false(stands if healthy is None else stands & healthy[:, :-1], steps)
    unbroken = None if healthy is None else healthy.gather(1, accepted[:, None])[:, 0]
    share = None
    if in_blocks:
        uniforms = uniform(seed, at, step_purpose(Purpose.ACCEPT, steps[:-1]))
        in_block, share = _accept_block(target, drafts, uniforms, p.where(drafts.valid, 0.0), rows)
        greedy = sampling.temperature == 0
        accepted, share = accepted.where(greedy, in_block), share.masked_fill_(greedy, 1.0)
        unbroken = None if healthy is None or unbroken is None else unbroken.where(greedy, healthy.all(1))
    token = _last_token(target, drafts, accepted, share, sampling.seed, positions, rows)
    tokens = pad(drafts.ids, (0, 1)).scatter_(1, accepted[:, None], token[:, None])
    return _result(tokens, accepted, unbroken, target.logprobs_of(rows, tokens), steps)


def _accept_block(target: _Target, drafts: _Drafts, uniforms: Tensor, p: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Number of accepted drafted tokens, int64 [B], and the share of p that remains for the next one, float32 [B]."""
    joint = block.joint_probs(p, drafts.chosen)
    if drafts.probs is None:
        masses = block.one_hot_masses(joint[:, :-1], p[:, 1:])
    else:
        masses = block.residual_masses(joint[:, :-1], target.probs[rows[:, 1:-1]], drafts.probs[:, 1:])
    if drafts.onehot is not None:
        masses = block.one_hot_masses(joint[:, :-1], p[:, 1:]).where(drafts.onehot[:, 1:], masses)
    prefixes = block.prefix_probs(joint, masses, drafts.lengths)
    accepted = block.accepted_prefix(uniforms, prefixes, drafts.valid)
    share = pad(joint, (1, 0), value=1.0).gather(1, accepted[:, None])[:, 0]
    return accepted, share.float()


def _last_token(
    target: _Target,
    drafts: _Drafts,
    accepted: Tensor,
    share: Tensor | None,
    seed: Tensor,
    positions: Tensor,
    rows: Tensor,
) -> Tensor:
    """The token after the `accepted` [B] ones: int64 [B], arbitrary where the row has no distribution.

    It is drawn from max(share * p - q, 0) after a rejection and from p otherwise. If that difference is 0 everywhere,
    which only rounding or wrong draft logits can cause, it is drawn from p.
    """
    rejected, at = accepted < drafts.lengths, accepted[:, None]
    p = target.probs.index_select(0, rows.gather(1, at)[:, 0])  # [B, V]
    residual = _residual(p, drafts, at.clamp(max=drafts.ids.size(1) - 1), rejected, share)
    weights = torch.where(residual.amax(-1, keepdim=True) > 0, residual, p)
    purpose = torch.where(rejected, int(Purpose.RESIDUAL), int(Purpose.TARGET))
    token = draw(weights, uniform(seed, positions + accepted, purpose))
    return token.clamp_(max=p.size(1) - 1)


def _residual(probs: Tensor, drafts: _Drafts, at: Tensor, rejected: Tensor, share: Tensor | None) -> Tensor:
    """max(share * p - q, 0) of the requests in the mask `rejected` [B], p of the others: [B, V], from p [B, V] and the
    index of the drafted token `at` [B, 1]."""
    if drafts.probs is None:
        return _drop_drafted(probs.clone(), drafts, at, rejected)
    q = drafts.probs[torch.arange(at.size(0), device=at.device), at[:, 0]]
    ignored = None if drafts.onehot is None else drafts.onehot.gather(1, at)[:, 0]
    sampled = rejected if ignored is None else rejected & ~ignored
    scaled_probs = probs if share is None else probs * share.where(sampled, 1.0)[:, None]
    residual = (scaled_probs - q.masked_fill_(~sampled[:, None], 0.0)).clamp_(min=0.0)
    return residual if ignored is None else _drop_drafted(residual, drafts, at, rejected & ignored)


def _drop_drafted(residual: Tensor, drafts: _Drafts, at: Tensor, rejected: Tensor) -> Tensor:
    """Zero the drafted token's entry in `residual` [B, V], in place, for the requests in the mask `rejected` [B]."""
    chosen = drafts.ids.gather(1, at)
    drop = rejected[:, None] & drafts.valid.gather(1, at)
    return residual.scatter_(1, chosen, residual.gather(1, chosen).masked_fill_(drop, 0.0))


def _margins(logits: Tensor, token_ids: Tensor, rows: Tensor | None = None) -> Tensor:
    """Best minus second best logit of each token's row, float32 [B, K + 1]. `rows` None: row i belongs to request i."""
    if logits.size(1) == 1:
        gaps = torch.full_like(logits[:, 0], math.inf, dtype=torch.float32)
    else:
        best = logits.to(torch.float32).topk(2).values
        gaps = best[:, 0] - best[:, 1]
    return (gaps[:, None] if rows is None else gaps.take(rows)).masked_fill(token_ids == PADDING, math.nan)


def _result(
    tokens: Tensor, accepted: Tensor, healthy: Tensor | None, logprobs: Tensor | None, steps: Tensor
) -> Verification:
    """Build the result from `tokens` and `logprobs` [B, K + 1] by padding all entries that are not emitted. A request
    that is not `healthy` [B] emits nothing; None means that all are."""
    accepted = accepted if healthy is None else accepted.where(healthy, -1)
    lengths = accepted + 1
    if healthy is not None or tokens.size(1) > 1:
        padding = steps >= lengths[:, None]
        tokens = tokens.masked_fill_(padding, PADDING)
        logprobs = None if logprobs is None else logprobs.masked_fill_(padding, math.nan)
    return Verification(tokens, accepted, lengths, logprobs, None)
