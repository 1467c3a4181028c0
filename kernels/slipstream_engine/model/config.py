"""The shape of a Llama-family model, read from a Hugging Face `config.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from slipstream_engine.errors import CheckpointError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
MISTRAL_WINDOW = 4096  # transformers' default for Mistral


class RopeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary position embedding: base and scaling. `kind` is transformers' `rope_type`."""

    theta: float
    kind: str = "default"
    parameters: Mapping[str, Any] = {}


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of the forward pass. Sizes are in elements, `context_tokens` in tokens."""

    family: str
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_rows: int
    norm_eps: float
    rope: RopeConfig
    context_tokens: int
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool


def load_config(folder: Path) -> ModelConfig:
    """Read `folder/config.json`.

    Raises:
        CheckpointError: the file is missing or broken, or it needs an unsupported feature (model family, activation,
            quantisation, rotary scaling).
    """
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise CheckpointError(f"{path}: {exc}") from exc
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path}: expected a JSON object")
    _refuse_what_is_not_implemented(path, raw)
    try:
        return _convert(raw)
    except KeyError as exc:
        raise CheckpointError(f"{path}: {exc.args[0]!r} is missing") from exc
    except (AttributeError, TypeError, ValueError) as exc:
        raise CheckpointError(f"{path}: {exc}") from exc


def _refuse_what_is_not_implemented(path: Path, raw: Mapping[str, Any]) -> None:
    family = raw.get("model_type")
    if family not in FAMILIES:
        raise CheckpointError(f"{path}: model_type {family!r} is not supported, only {', '.join(FAMILIES)}")
    activation = raw.get("hidden_act", "silu")
    if activation != "silu":
        raise CheckpointError(f"{path}: hidden_act {activation!r} is not supported, only 'silu'")
    if raw.get("quantization_config"):
        raise CheckpointError(f"{path}: quantization_config is set; quantised weights are not supported")


def _convert(raw: Mapping[str, Any]) -> ModelConfig:
    family = str(raw["model_type"])
    heads = int(raw["num_attention_heads"])
    hidden = int(raw["hidden_size"])
    return ModelConfig(
        family=family,
        hidden_size=hidden,
        intermediate_size=int(raw["intermediate_size"]),
        layers=int(raw["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or hidden // heads),
        vocab_rows=int(raw["vocab_size"]),
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope=_rope(raw),
        context_tokens=_context(raw),
        tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
        # Qwen2 always has biases on q, k and v; the other families set `attention_bias`.
        qkv_bias=family == "qwen2" or bool(raw.get("attention_bias", False)),
        output_bias=family != "qwen2" and bool(raw.get("attention_bias", False)),
        mlp_bias=bool(raw.get("mlp_bias", False)),
        qk_norm=family == "qwen3",
    )


def _rope(raw: Mapping[str, Any]) -> RopeConfig:
    """transformers 5 writes `rope_parameters`. Earlier versions wrote `rope_theta` and `rope_scaling`, which take
    precedence."""
    parameters = dict(raw.get("rope_scaling") or raw.get("rope_parameters") or {})
    named = raw.get("rope_parameters") or {}
    theta = parameters.pop("rope_theta", None) or named.get("rope_theta") or raw.get("rope_theta") or 10_000.0
    kind = parameters.pop("rope_type", None) or parameters.pop("type", None) or "default"
    parameters.setdefault("max_position_embeddings", raw["max_position_embeddings"])
    return RopeConfig(theta=float(theta), kind=str(kind), parameters=parameters)


def _context(raw: Mapping[str, Any]) -> int:
    """Number of positions for which full attention is exact: at most the sliding window, if there is one."""
    context = int(raw["max_position_embeddings"])
    if context < 1:
        raise ValueError(f"max_position_embeddings must be positive, got {context}")
    mistral = raw["model_type"] == "mistral"
    window = raw.get("sliding_window", MISTRAL_WINDOW if mistral else None)
    uses_window = raw.get("use_sliding_window", mistral)
    return min(context, int(window)) if window and uses_window else context
