"""A trainable EAGLE head. The engine has its own inference code; this module only trains.

At inference the first draft of a step follows from the target's features alone, the second one from a feature that the
head predicted, and so on. `Head.forward` therefore runs several times over a text, each time on its own predictions of
the time before, with the attention that inference would have (training-time test, Li et al., EAGLE-3, 2025).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from slipstream_engine.model.config import ModelConfig
from torch import Tensor, nn
from torch.nn import functional

from slipstream_training.models.llama import Attention, Mlp, config_json, cos_and_sin, write_checkpoint

TOKEN_IDS_FILE = "draft_token_ids.json"
_EMBEDDING_SCALE = 10.0


class HeadPass(NamedTuple):
    """One pass over texts: rotated keys and values [B, heads, T, head_dim]."""

    keys: Tensor
    values: Tensor


class _Layer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.mlp = Mlp(config)


class Head(nn.Module):
    """`fc` and one layer without an input norm, as EAGLE-1 has them. Embeddings are arguments."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.layers = nn.ModuleList([_Layer(config)])
        cos, sin = cos_and_sin(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        """At first a token's predicted feature is nearly that of the token before it."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.002 if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02)
        with torch.no_grad():
            hidden = self.config.hidden_size
            self.fc.weight[:, hidden:] += torch.eye(hidden)
            # Embeddings are much smaller than features: both should weigh about as much.
            self.fc.weight[:, :hidden] *= _EMBEDDING_SCALE

    def forward(self, embedded: Tensor, features: Tensor, earlier: Sequence[HeadPass]) -> tuple[Tensor, HeadPass]:
        """`embedded` and `features` [B, T, hidden] of neighbouring tokens; `earlier` passes over the same texts, the
        first of them on the target's features.

        Returns: the predicted features [B, T, hidden], and this pass.
        """
        layer: Any = self.layers[0]
        x = self.fc(torch.cat((embedded, features), dim=-1))
        queries, made = self._project(layer.self_attn, x)
        x = x + layer.self_attn.o_proj(_attend(queries, [*earlier, made]))
        return x + layer.mlp(layer.post_attention_layernorm(x)), made

    def _project(self, attention: Attention, x: Tensor) -> tuple[Tensor, HeadPass]:
        groups, length = self.config.heads // self.config.kv_heads, x.shape[1]
        queries, *shared = attention.projected(x, self.cos[:length], self.sin[:length])
        return queries, HeadPass(*(part.repeat_interleave(groups, dim=1) for part in shared))

    def save(self, folder: Path, token_ids: Sequence[int]) -> None:
        """Write a checkpoint and the ids of the proposed tokens into `folder`."""
        write_checkpoint(self, folder, config_json(self.config))
        (folder / TOKEN_IDS_FILE).write_text(json.dumps(list(token_ids)) + "\n")


def _attend(queries: Tensor, passes: Sequence[HeadPass]) -> Tensor:
    """Attention of the last of `passes` [B, heads, T, dim], as after as many drafts: to the target's features up to as
    many tokens before its own, then to one prediction of each later pass. Returns [B, T, heads * dim]."""
    first, later = passes[0], passes[1:]
    length, depth = queries.shape[2], len(later)
    queries = queries * queries.shape[-1] ** -0.5
    hidden = torch.ones(length, length, dtype=torch.bool, device=queries.device).triu(1 - depth)
    scores = [(queries @ first.keys.transpose(2, 3)).masked_fill(hidden, -1e4)]
    values = []
    for number, made in enumerate(later, 1):
        keys, shifted = (_shift(part, depth - number) for part in made)
        scores.append((queries * keys).sum(-1, keepdim=True))
        values.append(shifted)
    shares = torch.softmax(torch.cat(scores, dim=-1).float(), dim=-1).to(queries.dtype)
    mixed = shares[..., :length] @ first.values
    for number, shifted in enumerate(values):
        mixed = mixed + shares[..., length + number, None] * shifted
    return mixed.transpose(1, 2).flatten(2)


def _shift(x: Tensor, count: int) -> Tensor:
    """`x` [B, heads, T, dim] moved by `count` along T; zeros come in."""
    return functional.pad(x, (0, 0, count, 0))[:, :, : x.shape[2]]
