"""Verification in PyTorch: the implementation for CPUs and for GPUs without `triton`, and the kernel's definition.

The token at a position is the token of plain decoding: a function of the target's logits in its row and of the noise of
(seed, position). Each row of a request yields such a token. A drafted token is accepted if it is equal to the token of
its row and all tokens before it are accepted. The first row that differs emits its own token and ends the step; if no
row differs, the last row emits the bonus token. The emitted tokens are therefore those of plain decoding for any draft.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from slipstream_kernels.adjustments import LogitAdjustments, adjusted
from slipstream_kernels.batch import SamplingBatch
from slipstream_kernels.filters import filtered, scaled
from slipstream_kernels.sampling import choose
from slipstream_kernels.spec_verify.result import PADDING, Verification

_LONG = 2**18
"""Logits of one row per request from which on the CPU reads the rows of a request in turn. Below, the fixed cost of a
call is more than what the rows after a difference would cost."""

_FILTER_WEIGHT = 8
"""Cost of a filtered row, in rows without filters."""


@torch.no_grad()
def verify_pytorch(
    target_logits: Tensor,
    draft_token_ids: Tensor,
    draft_lengths: Tensor,
    sampling: SamplingBatch,
    positions: Tensor,
    *,
    row_start: Tensor | None,
    adjustments: LogitAdjustments | None,
) -> Verification:
    """As `verify`, with checked arguments."""
    requests, drafted = draft_token_ids.shape
    if drafted == 0 and adjustments is None and row_start is None:
        # A short path for plain decoding, where the overhead would be largest.
        return _plain(target_logits[:requests], sampling, positions)
    steps = torch.arange(drafted + 1, device=draft_lengths.device)
    rows = _rows(draft_lengths, row_start, steps)
    logits = target_logits
    if adjustments is not None:
        logits = adjusted(target_logits, adjustments, rows, draft_token_ids)
    if drafted == 0:
        return _plain(logits[rows[:, 0]], sampling, positions)
    if _saves_time(sampling, logits):
        choices = _choices_in_turn(logits, draft_token_ids, draft_lengths, sampling, positions, rows)
    else:
        choices = _all_choices(logits, sampling, positions, rows)
    tokens, healthy = choices.token_ids, choices.healthy  # [B, K + 1]
    agreed = (tokens[:, :-1] == draft_token_ids) & (steps[:-1] < draft_lengths[:, None])
    if healthy is not None:
        agreed = agreed & healthy[:, :-1]
    accepted = _first_false(agreed, steps)
    healthy = None if healthy is None else healthy.gather(1, accepted[:, None])[:, 0]
    return _result(tokens, accepted, healthy, steps)


def _rows(draft_lengths: Tensor, row_start: Tensor | None, steps: Tensor) -> Tensor:
    """The rows of logits of each request: int64 [B, K + 1], padded with the request's last row."""
    within = torch.minimum(steps, draft_lengths[:, None])
    if row_start is None:
        if draft_lengths.size(0) == 1:
            return within
        counts = draft_lengths + 1
        row_start = counts.cumsum(0).sub_(counts)
    return within.add_(row_start[:, None])


def _of_rows(sampling: SamplingBatch, positions: Tensor, rows: Tensor, total: int) -> tuple[SamplingBatch, Tensor]:
    """Parameters and position of each of the `total` rows of logits; arbitrary ones for rows without an owner."""
    at = torch.arange(total, device=rows.device)
    if len(sampling) == 1:
        return sampling.expand(total), at.add_(positions - rows[:, 0])
    owner = torch.zeros(total, dtype=torch.int64, device=rows.device)
    owner.scatter_(0, rows.flatten(), torch.arange(rows.numel(), device=rows.device) // rows.size(1))
    return sampling.rows(owner), at.add_((positions - rows[:, 0])[owner])


def _plain(logits: Tensor, sampling: SamplingBatch, positions: Tensor) -> Verification:
    """Without drafts: one token from each request's single row in `logits` [B, V]."""
    choices = _choices(logits, sampling, positions)
    steps = torch.zeros_like(choices.token_ids)
    return _result(choices.token_ids[:, None], steps, choices.healthy, steps[:1])


class _Choices(NamedTuple):
    """The target's token in each row of logits: tensors [N], or [B, K + 1] for the rows of B requests."""

    token_ids: Tensor
    """int64; arbitrary in rows without a distribution."""
    healthy: Tensor | None
    """bool: whether the row has a distribution; None if all have one."""


def _all_choices(logits: Tensor, sampling: SamplingBatch, positions: Tensor, rows: Tensor) -> _Choices:
    """Choose a token in every row at once."""
    if not sampling.all_greedy:
        sampling, positions = _of_rows(sampling, positions, rows, logits.size(0))
    tokens, healthy = _choices(logits, sampling, positions)
    return _Choices(tokens.take(rows), None if healthy is None else healthy.take(rows))


def _saves_time(sampling: SamplingBatch, logits: Tensor) -> bool:
    """Whether to choose the tokens row after row: a pass over the logits costs more than a call then."""
    weight = _FILTER_WEIGHT if sampling.any_filter else 1
    return logits.device.type == "cpu" and len(sampling) * logits.size(1) * weight >= _LONG


def _choices_in_turn(
    logits: Tensor,
    draft_token_ids: Tensor,
    draft_lengths: Tensor,
    sampling: SamplingBatch,
    positions: Tensor,
    rows: Tensor,
) -> _Choices:
    """As `_all_choices`, but without the rows after a request's first difference, which are left arbitrary."""
    tokens, healthy = torch.full_like(rows, PADDING), torch.ones_like(rows, dtype=torch.bool)
    active = torch.arange(rows.size(0))
    for step in range(rows.size(1)):
        at = rows[active, step]
        wanted = logits.narrow(0, int(at), 1) if at.numel() == 1 else logits[at]
        chosen = _choices(wanted, sampling.rows(active), positions[active] + step)
        tokens[active, step] = chosen.token_ids
        if chosen.healthy is not None:
            healthy[active, step] = chosen.healthy
        if step < draft_token_ids.size(1):
            agreed = (chosen.token_ids == draft_token_ids[active, step]) & (step < draft_lengths[active])
            active = active[agreed & healthy[active, step]]
            if not active.numel():
                break
    return _Choices(tokens, healthy)


def _choices(logits: Tensor, sampling: SamplingBatch, positions: Tensor) -> _Choices:
    """Choose a token in each row of `logits` [N, V]; `sampling` and `positions` have one entry per row."""
    if sampling.all_greedy:
        best, tokens = logits.max(-1)
        return _Choices(tokens, _finite(best))
    x = logits.to(torch.float32)
    best = x.amax(-1)
    scores = scaled(x, sampling, best)
    tokens = choose(filtered(scores.exp(), scores, sampling), scores, sampling, positions)
    return _Choices(tokens, _finite(best))


def _finite(best: Tensor) -> Tensor | None:
    """Whether each row has a distribution, bool [N], judged by its largest logit: NaN, +inf and -inf have none. On the
    CPU the result is None if all rows have one, which is nearly always the case and makes masks unnecessary."""
    if best.device.type == "cpu" and math.isfinite(best.sum(dtype=torch.float32).item()):
        return None
    return best - best == 0


def _first_false(agreed: Tensor, steps: Tensor) -> Tensor:
    """Number of true values before the first false one: int64 [B], from bool [B, K]."""
    return torch.where(agreed, agreed.size(1), steps[:-1]).amin(1)


def _result(tokens: Tensor, accepted: Tensor, healthy: Tensor | None, steps: Tensor) -> Verification:
    """Build the result from `tokens` [B, K + 1] by padding all entries that are not emitted. A request that is not
    `healthy` [B] emits nothing; None means that all are."""
    accepted = accepted if healthy is None else accepted.where(healthy, -1)
    lengths = accepted + 1
    if healthy is not None or tokens.size(1) > 1:
        tokens = tokens.masked_fill_(steps >= lengths[:, None], PADDING)
    return Verification(tokens, accepted, lengths)
