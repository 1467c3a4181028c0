"""A model with a mixture of experts whose answers the embedded draft model predicts: the embedded target, upcycled.

Each expert is the target's own feed-forward part plus noise, and the router is random. Two of `EXPERTS` answer for each
token, so that answers depend on the routing and stay close to the target's.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

EXPERTS = 4
_PER_TOKEN = 2
_NOISE = 0.05  # of the standard deviation of a weight
_PARTS = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}


def save_experts(target: Path, folder: Path) -> None:
    """Write the model to `folder`, in the form of Mixtral."""
    draw = torch.Generator().manual_seed(1)
    weights = {}
    for name, weight in load_file(target / "model.safetensors").items():
        layer, is_mlp, part = name.partition(".mlp.")
        if not is_mlp:
            weights[name] = weight
            continue
        for expert in range(EXPERTS):
            noise = torch.randn(weight.shape, generator=draw) * weight.float().std() * _NOISE
            own = f"{layer}.block_sparse_moe.experts.{expert}.{_PARTS[part.removesuffix('.weight')]}.weight"
            weights[own] = (weight.float() + noise).to(weight.dtype)
        router = torch.randn(EXPERTS, weights["model.embed_tokens.weight"].shape[1], generator=draw)
        weights[f"{layer}.block_sparse_moe.gate.weight"] = router.to(weight.dtype)
    shutil.copytree(target, folder)
    save_file(weights, folder / "model.safetensors")
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    del config["mlp_bias"]
    of_experts = {"num_local_experts": EXPERTS, "num_experts_per_tok": _PER_TOKEN, "sliding_window": None}
    kind = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
    (folder / "config.json").write_text(json.dumps({**config, **kind, **of_experts}), encoding="utf-8")
