"""Weights of a Llama-family model, read from safetensors in Hugging Face format and fused for decoding."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from slipstream_engine.errors import CheckpointError
from slipstream_engine.model.config import ModelConfig
from slipstream_engine.model.rope import interleave_rows
from slipstream_engine.model.tensor_files import tensor_files


class LayerWeights(NamedTuple):
    """One decoder layer. Projections with the same input are stacked: one matrix product instead of two or three."""

    attention_norm: Tensor | None  # [hidden]; None in the first layer of an EAGLE head
    qkv: Tensor  # [(heads + 2 * kv_heads) * head_dim, hidden]; rows of q and k as interleaved pairs
    qkv_bias: Tensor | None  # [(heads + 2 * kv_heads) * head_dim]
    q_norm: Tensor | None  # [head_dim], interleaved like q
    k_norm: Tensor | None  # [head_dim]
    output: Tensor  # [hidden, heads * head_dim]
    output_bias: Tensor | None  # [hidden]
    mlp_norm: Tensor  # [hidden]
    gate_up: Tensor  # [2 * intermediate, hidden]
    gate_up_bias: Tensor | None  # [2 * intermediate]
    down: Tensor  # [hidden, intermediate]
    down_bias: Tensor | None  # [hidden]


class ModelWeights(NamedTuple):
    """All weights of a model, on one device, in one dtype. `head` shares memory with `embedding` where tied."""

    embedding: Tensor  # [vocab_rows, hidden]
    layers: tuple[LayerWeights, ...]
    norm: Tensor  # [hidden]
    head: Tensor  # [vocab_rows, hidden]


def load_weights(folder: Path, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> ModelWeights:
    """Read `model.safetensors`, or the shards that `model.safetensors.index.json` names.

    Raises:
        CheckpointError: a file or a tensor is missing or broken, or its shape differs from `config`.
    """
    reader = _Reader(folder, device, dtype)
    hidden = config.hidden_size
    embedding = reader.take("model.embed_tokens.weight", config.vocab_rows, hidden)
    layers = tuple(_layer(reader, config, f"model.layers.{index}") for index in range(config.layers))
    norm = reader.take("model.norm.weight", hidden)
    # As in transformers, a head in the file is used even if the configuration ties it.
    tied = config.tied_embeddings and not reader.has("lm_head.weight")
    head = embedding if tied else reader.take("lm_head.weight", config.vocab_rows, hidden)
    reader.refuse_leftovers()
    return ModelWeights(embedding, layers, norm, head)


def load_eagle_weights(
    folder: Path, config: ModelConfig, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, tuple[LayerWeights, ...]]:
    """Read an EAGLE head in the format of EAGLE-1: its fusion [hidden, 2 * hidden] and its layers. Embeddings in the
    file are left alone, as they are the target's. Raises CheckpointError as `load_weights`."""
    reader = _Reader(folder, device, dtype)
    fc = reader.take("fc.weight", config.hidden_size, 2 * config.hidden_size)
    layers = tuple(_layer(reader, config, f"layers.{index}") for index in range(config.layers))
    reader.refuse_leftovers(but="embed_tokens.weight")
    return fc, layers


def _layer(reader: _Reader, config: ModelConfig, prefix: str) -> LayerWeights:
    hidden, dim, inner = config.hidden_size, config.head_dim, config.intermediate_size
    rows = {"q": config.heads * dim, "k": config.kv_heads * dim, "v": config.kv_heads * dim}

    def projection(name: str, *shape: int) -> Tensor:
        tensor = reader.take(f"{prefix}.self_attn.{name[0]}_proj.{name[2:]}", *shape)
        return tensor if name[0] == "v" else interleave_rows(tensor, dim)

    def head_norm(name: str) -> Tensor | None:
        tensor = reader.take_if(config.qk_norm, f"{prefix}.self_attn.{name}.weight", dim)
        return None if tensor is None else interleave_rows(tensor, dim)

    def gate_up(kind: str, *shape: int) -> Tensor:
        return torch.cat([reader.take(f"{prefix}.mlp.{name}_proj.{kind}", *shape) for name in ("gate", "up")])

    return LayerWeights(
        attention_norm=reader.take_if(prefix != "layers.0", f"{prefix}.input_layernorm.weight", hidden),
        qkv=torch.cat([projection(f"{name}.weight", count, hidden) for name, count in rows.items()]),
        qkv_bias=torch.cat([projection(f"{name}.bias", count) for name, count in rows.items()])
        if config.qkv_bias
        else None,
        q_norm=head_norm("q_norm"),
        k_norm=head_norm("k_norm"),
        output=reader.take(f"{prefix}.self_attn.o_proj.weight", hidden, config.heads * dim),
        output_bias=reader.take_if(config.output_bias, f"{prefix}.self_attn.o_proj.bias", hidden),
        mlp_norm=reader.take(f"{prefix}.post_attention_layernorm.weight", hidden),
        gate_up=gate_up("weight", inner, hidden),
        gate_up_bias=gate_up("bias", inner) if config.mlp_bias else None,
        down=reader.take(f"{prefix}.mlp.down_proj.weight", hidden, inner),
        down_bias=reader.take_if(config.mlp_bias, f"{prefix}.mlp.down_proj.bias", hidden),
    )


class _Reader:
    """Finds each tensor in its shard and checks its shape."""

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        self._files = dict(tensor_files(folder))
        self._folder = folder
        self._taken: set[str] = set()

    def has(self, name: str) -> bool:
        return name in self._files

    def refuse_leftovers(self, but: str = "") -> None:
        """Unused tensors mean that config.json describes another model; `but` may be left."""
        known = {*self._taken, but}
        unused = [name for name in self._files if name not in known and not name.endswith(".inv_freq")]
        if unused:
            raise CheckpointError(f"{self._folder}: config.json has no place for tensor {min(unused)!r}")

    def take(self, name: str, *shape: int) -> Tensor:
        path = self._files.get(name)
        self._taken.add(name)
        if path is None:
            raise CheckpointError(f"{self._folder}: tensor {name!r} is missing")
        try:
            with safe_open(path, framework="pt") as shard:
                tensor: Tensor = shard.get_tensor(name)
        except (OSError, SafetensorError) as exc:
            raise CheckpointError(f"{path}: {name}: {exc}") from exc
        if tensor.shape != shape:
            raise CheckpointError(f"{path}: {name} has shape {list(tensor.shape)}, config.json says {list(shape)}")
        return tensor.to(device=self._device, dtype=self._dtype)

    def take_if(self, present: bool, name: str, *shape: int) -> Tensor | None:
        return self.take(name, *shape) if present else None
