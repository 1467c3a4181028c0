"""Draft heads for the embedded target, built in a second."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

ATTENTION, OTHERS = 0.06, 0.01  # scales of random weights: drafts depend on the cache, and the fit stays useful


def save_eagle_head(target: str, prompts: torch.Tensor, folder: Path) -> None:
    """Write an EAGLE head that predicts some of the target's tokens to `folder`.

    Its first matrix is fitted to the target's hidden states after `prompts` (prompts, tokens) by least squares. The
    weights of its layer are random.
    """
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    with torch.inference_mode():
        tokens = model.generate(prompts, max_new_tokens=48, do_sample=False, eos_token_id=None, pad_token_id=0)
        hidden = model.model(tokens).last_hidden_state
        inputs = torch.cat([model.model.embed_tokens(tokens[:, 1:]), hidden[:, :-1]], dim=-1)
    size = hidden.shape[-1]
    # of the token after next, from the next token and the present hidden state
    fitted = torch.linalg.lstsq(inputs.reshape(-1, 2 * size).double(), hidden[:, 1:].reshape(-1, size).double())
    draw = torch.Generator().manual_seed(1)
    weights = {"fc.weight": fitted.solution.T.float().contiguous()}
    for name, weight in model.model.layers[0].state_dict().items():
        if "input_layernorm" not in name:
            noise = torch.randn(weight.shape, generator=draw) * (ATTENTION if "self_attn" in name else OTHERS)
            weights[f"layers.0.{name}"] = torch.ones_like(weight) if "layernorm" in name else noise
    folder.mkdir()
    save_file(weights, folder / "model.safetensors")
    config = json.loads(Path(target, "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}), encoding="utf-8")
