"""LoRA adapters of the embedded target in PEFT's format, with random weights."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from slipstream_engine.embedded import TARGET_DIR

RANK = 4
_MODULES = {"q_proj": "num_attention_heads", "v_proj": "num_key_value_heads"}


def write_adapter(folder: Path, *, seed: int = 0, scale: float = 0.05) -> Path:
    """Writes an adapter into `folder` and returns it. A larger `scale` changes answers more."""
    target = json.loads((TARGET_DIR / "config.json").read_text())
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(target["num_hidden_layers"]):
        for module, heads in _MODULES.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            width = target[heads] * target["head_dim"]
            tensors[f"{name}.lora_A.weight"] = torch.randn(RANK, target["hidden_size"], generator=generator) * scale
            tensors[f"{name}.lora_B.weight"] = torch.randn(width, RANK, generator=generator) * scale
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(_MODULES),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
