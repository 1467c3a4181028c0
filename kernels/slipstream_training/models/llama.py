"""A trainable model of the Llama family with Hugging Face's parameter names.

The engine has its own inference code. This module only trains, on right-padded batches, so causal attention needs no
padding mask.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from slipstream_engine.errors import CheckpointError
from slipstream_engine.model.config import ModelConfig, RopeConfig, load_config
from slipstream_engine.model.rope import rotations
from slipstream_engine.model.tensor_files import SINGLE, tensor_files, write_json
from torch import Tensor, nn
from torch.nn import functional


def llama_config(
    *, layers: int, hidden: int, heads: int, kv_heads: int, intermediate: int, vocab: int, head_dim: int = 32,
    context: int = 2048, rope: RopeConfig | None = None, norm_eps: float = 1e-5,
) -> ModelConfig:  # fmt: skip
    """The configuration of a new Llama with tied embeddings. `heads` is a multiple of `kv_heads`."""
    return ModelConfig(
        family="llama",
        hidden_size=hidden,
        intermediate_size=intermediate,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_rows=vocab,
        norm_eps=norm_eps,
        rope=rope or RopeConfig(theta=10_000.0),
        context_tokens=context,
        tied_embeddings=True,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
    )


def config_json(config: ModelConfig, **ids: int | list[int] | None) -> dict[str, Any]:
    """`config.json` of a `LlamaForCausalLM`. `ids`: `bos_token_id`, `eos_token_id` and `pad_token_id`."""
    if config.rope.kind != "default":
        raise ValueError(f"a new configuration has no rope scaling, got {config.rope.kind!r}")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "num_hidden_layers": config.layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_rows,
        "max_position_embeddings": config.context_tokens,
        "rope_theta": config.rope.theta,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied_embeddings,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "bfloat16",
        **ids,
    }


_WRITTEN_OUT = 1024


def write_checkpoint(model: nn.Module, folder: Path, config: dict[str, Any]) -> None:
    """Write bf16 `model.safetensors` and `config` as `config.json` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    weights = {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()}
    (folder / SINGLE).write_bytes(save(weights, metadata={"format": "pt"}))


class Attention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        hidden, dim, bias = config.hidden_size, config.head_dim, config.qkv_bias
        self.q_proj = nn.Linear(hidden, config.heads * dim, bias=bias)
        self.k_proj = nn.Linear(hidden, config.kv_heads * dim, bias=bias)
        self.v_proj = nn.Linear(hidden, config.kv_heads * dim, bias=bias)
        self.o_proj = nn.Linear(config.heads * dim, hidden, bias=config.output_bias)
        if config.qk_norm:
            self.q_norm = nn.RMSNorm(dim, eps=config.norm_eps)
            self.k_norm = nn.RMSNorm(dim, eps=config.norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [B, T, hidden], cos and sin [T, head_dim] -> [B, T, hidden]"""
        batch, length, _ = x.shape
        heads, kv_heads, dim = self.config.heads, self.config.kv_heads, self.config.head_dim
        q, k, v = self.projected(x, cos, sin)
        q = q.reshape(batch * kv_heads, heads // kv_heads * length, dim)
        mixed = _attend(q, k.flatten(0, 1), v.flatten(0, 1)).view(batch, heads, length, dim)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, heads * dim))
        return out

    def projected(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries [B, heads, T, head_dim], rotated keys [B, kv_heads, T, head_dim] and values, as the keys."""
        q, k, v = (
            projection(x).unflatten(-1, (-1, self.config.head_dim))
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.config.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        return rotate(q.transpose(1, 2), cos, sin), rotate(k.transpose(1, 2), cos, sin), v.transpose(1, 2)


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention; q [N, groups * T, dim], k and v [N, T, dim] -> as q.

    Written out because for heads this small it takes half the time of torch's fused attention on a CPU. Long texts
    take that, since the scores of all pairs of tokens would not fit.
    """
    length = k.shape[1]
    if length > _WRITTEN_OUT:
        q = q.view(k.shape[0], -1, length, q.shape[-1])
        keys, values = (states.unsqueeze(1).expand(-1, q.shape[1], -1, -1) for states in (k, v))
        return functional.scaled_dot_product_attention(q, keys, values, is_causal=True).flatten(1, 2)
    mask = torch.full((length, length), float("-inf"), dtype=q.dtype, device=q.device).triu(1)
    mask = mask.repeat(q.shape[1] // length, 1).expand(q.shape[0], -1, -1)
    scores = torch.baddbmm(mask, q * q.shape[-1] ** -0.5, k.transpose(1, 2))
    return torch.bmm(torch.softmax(scores, dim=-1), v)


def cos_and_sin(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """The rotation of every position [context_tokens, head_dim], for `rotate`."""
    turns = rotations(config.rope, config.head_dim, config.context_tokens)  # [context_tokens, head_dim / 2]
    return torch.cat((turns.real, turns.real), dim=-1), torch.cat((turns.imag, turns.imag), dim=-1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate `x` [B, heads, T, head_dim], whose pairs are half a head apart, by `cos` and `sin` [T, head_dim]."""
    low, high = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-high, low), dim=-1) * sin).to(x.dtype)


class Mlp(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = nn.Linear(hidden, inner, bias=bias)
        self.up_proj = nn.Linear(hidden, inner, bias=bias)
        self.down_proj = nn.Linear(inner, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.mlp = Mlp(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Backbone(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_rows, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)


class Llama(nn.Module):
    """Next-token logits."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Backbone(config)
        if not config.tied_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_rows, bias=False)
        cos, sin = cos_and_sin(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        """Normal(0, 0.02). Projections into the residual stream are scaled down by the depth."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                writes = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * self.config.layers) ** 0.5 if writes else 0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """ids [B, T] int64 -> logits [B, T, vocab]"""
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        head = self.model.embed_tokens.weight if self.config.tied_embeddings else self.lm_head.weight
        return functional.linear(self.model.norm(x), head)

    def save(self, folder: Path, config: dict[str, Any]) -> None:
        """Write a checkpoint into `folder`; see `write_checkpoint`."""
        write_checkpoint(self, folder, config)

    @classmethod
    def load(cls, folder: Path) -> Llama:
        """Load a checkpoint folder as float32 and in evaluation mode.

        Raises:
            CheckpointError: the folder is broken, or needs what the engine does not support.
        """
        config = load_config(folder)
        try:
            names = dict(tensor_files(folder))
            # As in the engine, a head in the file is used even if the configuration ties it.
            tied = config.tied_embeddings and "lm_head.weight" not in names
            model, files = cls(msgspec.structs.replace(config, tied_embeddings=tied)), set(names.values())
            weights = {name: tensor.float() for file in files for name, tensor in load_file(file).items()}
            model.load_state_dict({name: t for name, t in weights.items() if not name.endswith(".inv_freq")})
        except (OSError, SafetensorError, RuntimeError) as exc:
            raise CheckpointError(f"{folder}: {exc}") from exc
        return model.eval()
