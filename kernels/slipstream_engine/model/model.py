"""The forward pass of Llama, Mistral, Qwen2 and Qwen3 over a slot cache.

Structure: Touvron et al. 2302.13971 (RMSNorm, SwiGLU, rotary positions), Ainslie et al. 2305.13245 (grouped-query
attention), with Qwen2's biases and Qwen3's query and key norms if configured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from slipstream_engine.model.cache import SlotCache
from slipstream_engine.model.checkpoint import LayerWeights, ModelWeights, load_weights
from slipstream_engine.model.config import ModelConfig, load_config
from slipstream_engine.model.rope import apply_rotation, rotations
from slipstream_engine.model.step_batch import Part, Span, StepBatch, layout

Attend = Callable[[int, Tensor], Tensor]


class Model:
    """One copy of a model's weights. It holds no request state: the cache is an argument."""

    def __init__(
        self, config: ModelConfig, weights: ModelWeights, *, context_tokens: int, device: torch.device
    ) -> None:
        self.config, self.device = config, device
        self.context_tokens = context_tokens
        self.dtype = weights.embedding.dtype
        self._weights = weights
        # [context_tokens, 1, head_dim / 2]: the middle dimension broadcasts over heads
        self._rotations = rotations(config.rope, config.head_dim, context_tokens).unsqueeze(1).to(device)

    @classmethod
    def load(
        cls, folder: Path, *, device: torch.device, dtype: torch.dtype, context_tokens: int | None = None
    ) -> Model:
        """Load a checkpoint folder. `context_tokens` None uses the model's maximum.

        Raises:
            CheckpointError: the folder is broken or needs an unsupported feature.
        """
        config = load_config(folder)
        context = min(context_tokens or config.context_tokens, config.context_tokens)
        return cls(config, load_weights(folder, config, device, dtype), context_tokens=context, device=device)

    def weights_around(self, layers: tuple[LayerWeights, ...], token_ids: Tensor | None) -> ModelWeights:
        """Other `layers` between this model's embeddings; of the output embedding only the rows of `token_ids`."""
        own = self._weights
        head = own.head if token_ids is None else own.head[token_ids]
        return ModelWeights(own.embedding, layers, own.norm, head)

    def tensors(self) -> Iterator[Tensor]:
        """All weights, in a fixed order."""
        own = self._weights
        yield from (own.embedding, own.norm, own.head)
        for layer in own.layers:
            yield from (tensor for tensor in layer if tensor is not None)

    def new_cache(self, slots: int) -> SlotCache:
        """An empty cache for `slots` requests of this model."""
        return SlotCache(self.config, slots, self.context_tokens, self.device, self.dtype)

    def layout(self, spans: Sequence[Span]) -> StepBatch:
        """The layout of `spans` (one per slot, slots ascending) for one pass of this model."""
        features = self.config.heads * self.config.head_dim
        return layout(spans, self.context_tokens, self.device, self.dtype, features)

    def forward(self, token_ids: Tensor, batch: StepBatch, cache: SlotCache) -> Tensor:
        """Run `token_ids` [T] i64, laid out by `batch`; writes their keys and values into `cache`.

        Returns:
            The last layer's hidden states [T, hidden], before the final norm, as input for `logits`.
        """
        return self.run(self.embed(token_ids), batch, cache)

    def embed(self, token_ids: Tensor) -> Tensor:
        """The embeddings [T, hidden] of `token_ids` [T] i64."""
        return functional.embedding(token_ids, self._weights.embedding)

    def run(self, hidden: Tensor, batch: StepBatch, cache: SlotCache) -> Tensor:
        """The layers alone: their output [T, hidden] for their input `hidden` [T, hidden]."""
        rotation = self._rotations[batch.positions]
        attend = self._attention(batch, cache)
        for index, layer in enumerate(self._weights.layers):
            x = hidden if layer.attention_norm is None else self._norm(hidden, layer.attention_norm)
            queries = self._project(index, layer, x, rotation, batch, cache)
            mixed = attend(index, queries)
            hidden = _add_linear(hidden, mixed, layer.output, layer.output_bias)
            gate, up = functional.linear(self._norm(hidden, layer.mlp_norm), layer.gate_up, layer.gate_up_bias).chunk(
                2, dim=-1
            )
            hidden = _add_linear(hidden, functional.silu(gate).mul_(up), layer.down, layer.down_bias)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Next-token logits [rows, vocab_rows] of `hidden` [rows, hidden]."""
        return self.read(self.features(hidden))

    def read(self, features: Tensor) -> Tensor:
        """Next-token logits [rows, rows of the head] of `features` [rows, hidden]."""
        return functional.linear(features, self._weights.head)

    def features(self, hidden: Tensor) -> Tensor:
        """`hidden` [rows, hidden] after the final norm: what the head reads, and what an EAGLE head predicts."""
        return self._norm(hidden, self._weights.norm)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, self.config.norm_eps)

    def _project(
        self, index: int, layer: LayerWeights, x: Tensor, rotation: Tensor, batch: StepBatch, cache: SlotCache
    ) -> Tensor:
        """Queries of `x` [T, hidden] as [T, heads, head_dim]; its keys and values go into `cache`."""
        heads, kv_heads, dim = self.config.heads, self.config.kv_heads, self.config.head_dim
        qkv = functional.linear(x, layer.qkv, layer.qkv_bias).view(-1, heads + 2 * kv_heads, dim)
        if layer.q_norm is None or layer.k_norm is None:
            rotated = apply_rotation(qkv[:, : heads + kv_heads], rotation)
            queries, keys = rotated[:, :heads], rotated[:, heads:]
        else:
            queries = apply_rotation(self._norm(qkv[:, :heads], layer.q_norm), rotation)
            keys = apply_rotation(self._norm(qkv[:, heads : heads + kv_heads], layer.k_norm), rotation)
        cache.write(index, batch.cache_rows, keys, qkv[:, heads + kv_heads :])
        return queries

    def _attention(self, batch: StepBatch, cache: SlotCache) -> Attend:
        """Attention of a layer's queries [T, heads, head_dim] over the cached positions: [T, heads * head_dim]."""
        kv_heads = self.config.kv_heads
        groups = self.config.heads // kv_heads
        if batch.parts:
            parts = [part._replace(mask=_group_mask(part.mask, groups)) for part in batch.parts]
            return lambda layer, queries: _attend_parts(layer, queries, parts, kv_heads, cache)
        mask = _group_mask(batch.mask, groups)

        def attend(layer: int, queries: Tensor) -> Tensor:
            keys, values = cache.read(layer, batch.first_slot, batch.slots, batch.length)
            grouped = _group(queries, batch, kv_heads)
            mixed = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
            return _ungroup(mixed, batch, self.config.heads)

        return attend


def _attend_parts(layer: int, queries: Tensor, parts: Sequence[Part], kv_heads: int, cache: SlotCache) -> Tensor:
    """Attention of one request after the other: [T, heads * head_dim]."""
    _, heads, dim = queries.shape
    mixed = torch.empty_like(queries)
    for begin, end, slot, length, mask in parts:
        keys, values = cache.read(layer, slot, 1, length)
        own = (
            queries[begin:end].view(-1, kv_heads, heads // kv_heads, dim).transpose(0, 1).reshape(1, kv_heads, -1, dim)
        )
        found = functional.scaled_dot_product_attention(own, keys, values, attn_mask=mask)
        mixed[begin:end] = found.view(kv_heads, end - begin, -1, dim).transpose(0, 1).reshape(-1, heads, dim)
    return mixed.view(-1, heads * dim)


def _add_linear(residual: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`residual + x @ weight.T (+ bias)` in one product."""
    added = torch.addmm(residual, x, weight.t())
    return added if bias is None else added + bias


def _group(queries: Tensor, batch: StepBatch, kv_heads: int) -> Tensor:
    """[T, heads, dim] -> [S, kv_heads, n * groups, dim]: queries that share a key head become rows of one matrix
    product, so keys and values are not repeated."""
    if batch.padded_rows is not None:
        padded = queries.new_zeros(batch.slots * batch.tokens_per_slot, *queries.shape[1:])
        queries = padded.index_copy_(0, batch.padded_rows, queries)
    shaped = queries.reshape(batch.slots, batch.tokens_per_slot, kv_heads, -1, queries.shape[-1])
    grouped: Tensor = shaped.transpose(1, 2).flatten(2, 3)
    return grouped


def _ungroup(mixed: Tensor, batch: StepBatch, heads: int) -> Tensor:
    """[S, kv_heads, n * groups, dim] -> [T, heads * dim]"""
    shaped: Tensor = mixed.unflatten(2, (batch.tokens_per_slot, -1)).transpose(1, 2)
    rows = shaped.reshape(batch.slots * batch.tokens_per_slot, heads * mixed.shape[-1])
    return rows if batch.padded_rows is None else rows[batch.padded_rows]


def _group_mask(mask: Tensor | None, groups: int) -> Tensor | None:
    """The mask of `_group`'s rows: each token's row is repeated for every query head of a group."""
    return mask if mask is None or groups == 1 else mask.repeat_interleave(groups, dim=2)
