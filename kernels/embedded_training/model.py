"""A small trainable Llama with Hugging Face's parameter names.

The engine has its own inference code. This module only trains, on right-padded batches, so causal attention needs no
padding mask.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The dimensions of a Llama. `heads` is a multiple of `kv_heads`."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int = 2048
    head_dim: int = 32
    max_positions: int = 2048
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5

    def hf_config(self, *, pad_id: int, eos_id: int) -> dict[str, object]:
        """`config.json` of `LlamaForCausalLM`."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "num_hidden_layers": self.layers,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab,
            "max_position_embeddings": self.max_positions,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.norm_eps,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "mlp_bias": False,
            "torch_dtype": "bfloat16",
            "bos_token_id": None,
            "eos_token_id": eos_id,
            "pad_token_id": pad_id,
        }


TARGET = Shape(layers=16, hidden=128, heads=4, kv_heads=2, intermediate=384)
STEM = replace(TARGET, layers=4)
DRAFT = Shape(layers=1, hidden=192, heads=6, kv_heads=6, intermediate=576)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [B, T, hidden], cos and sin [T, head_dim] -> [B, T, hidden]"""
        batch, length, _ = x.shape
        heads, kv_heads, dim = self.shape.heads, self.shape.kv_heads, self.shape.head_dim
        q = _rotate(self.q_proj(x).view(batch, length, heads, dim).transpose(1, 2), cos, sin)
        k = _rotate(self.k_proj(x).view(batch, length, kv_heads, dim).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(batch, length, kv_heads, dim).transpose(1, 2)
        q = q.reshape(batch * kv_heads, heads // kv_heads * length, dim)
        mixed = _attend(q, k.flatten(0, 1), v.flatten(0, 1)).view(batch, heads, length, dim)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, heads * dim))
        return out


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention; q [N, groups * T, dim], k and v [N, T, dim] -> as q.

    Written out because for heads this small it takes half the time of torch's fused attention on a CPU.
    """
    length = k.shape[1]
    mask = torch.full((length, length), float("-inf"), dtype=q.dtype, device=q.device).triu(1)
    mask = mask.repeat(q.shape[1] // length, 1).expand(q.shape[0], -1, -1)
    scores = torch.baddbmm(mask, q * q.shape[-1] ** -0.5, k.transpose(1, 2))
    return torch.bmm(torch.softmax(scores, dim=-1), v)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-high, low), dim=-1) * sin).to(x.dtype)


class Mlp(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
        self.mlp = Mlp(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Backbone(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)


class Llama(nn.Module):
    """Next-token logits with tied embeddings."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Backbone(shape)
        half = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
        angles = torch.outer(torch.arange(shape.max_positions, dtype=torch.float32), shape.rope_theta**-half)
        angles = torch.cat((angles, angles), dim=-1)  # [max_positions, head_dim]
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        """Normal(0, 0.02). Projections into the residual stream are scaled down by the depth."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                writes = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * self.shape.layers) ** 0.5 if writes else 0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """ids [B, T] int64 -> logits [B, T, vocab]"""
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        return functional.linear(self.model.norm(x), self.model.embed_tokens.weight)

    def grown(self, layers: int) -> Llama:
        """The same function with more layers, spread evenly.

        A new layer is a copy of the one below it whose two outputs are zero, so that it changes nothing yet
        and still gets gradients (progressive stacking).
        """
        grown = Llama(replace(self.shape, layers=layers))
        grown.model.embed_tokens.load_state_dict(self.model.embed_tokens.state_dict())
        grown.model.norm.load_state_dict(self.model.norm.state_dict())
        taken = -1
        for index, layer in enumerate(grown.model.layers):
            source = index * self.shape.layers // layers
            layer.load_state_dict(self.model.layers[source].state_dict())
            if source == taken:
                nn.init.zeros_(layer.get_parameter("self_attn.o_proj.weight"))
                nn.init.zeros_(layer.get_parameter("mlp.down_proj.weight"))
            taken = source
        return grown

    def save(self, folder: Path, *, pad_id: int, eos_id: int) -> None:
        """Write `config.json`, `generation_config.json` and bf16 `model.safetensors` into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        config = self.shape.hf_config(pad_id=pad_id, eos_id=eos_id)
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        generation = {"do_sample": False, "eos_token_id": eos_id, "pad_token_id": pad_id}
        (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
        weights = {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in self.state_dict().items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    @classmethod
    def load(cls, folder: Path) -> Llama:
        """Load the files of `save`, as float32 and in evaluation mode."""
        config = json.loads((folder / "config.json").read_text())
        shape = Shape(
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            heads=config["num_attention_heads"],
            kv_heads=config["num_key_value_heads"],
            intermediate=config["intermediate_size"],
            vocab=config["vocab_size"],
            head_dim=config["head_dim"],
            max_positions=config["max_position_embeddings"],
            rope_theta=config["rope_theta"],
            norm_eps=config["rms_norm_eps"],
        )
        model = cls(shape)
        model.load_state_dict({name: t.float() for name, t in load_file(folder / "model.safetensors").items()})
        return model.eval()
