"""Block verification: the drafted tokens of a step are accepted together instead of one by one.

Sun et al., "Block verification accelerates speculative decoding" (2403.10444), algorithm 2. It emits the same
distribution and accepts at least as many tokens in expectation, because a later token can compensate for an earlier one
with too little probability. With p_i and q_i the target's and the draft's distribution of the i-th token and d_i the
drafted token:

    P_0 = 1, P_i = min(1, P_{i-1} p_i(d_i) / q_i(d_i))
    R_i = sum over x of max(P_i p_{i+1}(x) - q_{i+1}(x), 0), h_i = R_i / (R_i + 1 - P_i) for i < γ, and h_γ = P_γ

The longest prefix i with η_i < h_i is accepted, or no token if there is no such prefix. The next token is drawn from
max(P_i p_{i+1} - q_{i+1}, 0), normalised.
"""

from __future__ import annotations

import torch
from torch import Tensor


def joint_probs(target_prob: Tensor, draft_prob: Tensor) -> Tensor:
    """P_1 to P_K of each request, float64 [B, K], from the probabilities [B, K] of the drafted tokens."""
    joint, columns = torch.ones(target_prob.size(0), dtype=torch.float64, device=target_prob.device), []
    for p, q in zip(target_prob.double().unbind(1), draft_prob.double().unbind(1), strict=True):
        # 0 / 0 and NaN (a row without a distribution) become 0: such a token is not part of an accepted block.
        joint = (joint * p / q).nan_to_num(nan=0.0, posinf=1.0).clamp(max=1.0)
        columns.append(joint)
    return torch.stack(columns, 1)


def residual_masses(joint: Tensor, target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """R of each prefix: float64 [B, K - 1], from P_1 to P_{K-1} [B, K - 1] and the distributions [B, K - 1, V] after
    each prefix."""
    return (joint[:, :, None].float() * target_probs - draft_probs).clamp_(min=0.0).sum(-1, dtype=torch.float64)


def one_hot_masses(joint: Tensor, target_prob: Tensor) -> Tensor:
    """R of drafts that were not sampled: P without the target's share for the next drafted token, float64
    [B, K - 1]."""
    return joint * (1.0 - target_prob.double())


def prefix_probs(joint: Tensor, masses: Tensor, lengths: Tensor) -> Tensor:
    """h_1 to h_K: float64 [B, K], from P_1 to P_K [B, K], R_1 to R_{K-1} [B, K - 1] and draft lengths [B]."""
    head = joint[:, :-1]
    # 0 / 0 means that target and draft are equal, so h of the next prefix is 1.
    before_last = (masses / (masses + 1.0 - head)).nan_to_num(nan=0.0)
    prefixes = torch.cat((before_last, joint[:, -1:]), 1)
    at_end = torch.arange(1, joint.size(1) + 1, device=joint.device) == lengths[:, None]
    return torch.where(at_end, joint, prefixes)


def accepted_prefix(uniforms: Tensor, prefixes: Tensor, valid: Tensor) -> Tensor:
    """Length of the longest accepted prefix: int64 [B], from η and h [B, K] and the mask of drafted tokens [B, K]."""
    lengths = torch.arange(1, uniforms.size(1) + 1, device=uniforms.device)
    return torch.where(valid & (uniforms < prefixes), lengths, 0).amax(1)
