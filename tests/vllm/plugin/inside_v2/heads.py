"""Draft heads for the embedded target, built in seconds.

The first matrix of a head is fitted to the target's hidden states after some prompts by least squares, so that it
predicts some of the target's tokens. The weights of its layer are random.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

ATTENTION, OTHERS = 0.06, 0.01  # scales of random weights: drafts depend on the cache, and the fit stays useful
AUX_LAYERS = (2, 8, 13)  # of the target's 16, whose outputs an EAGLE-3 head reads; vLLM's choice
Weights = dict[str, torch.Tensor]


class Sample(NamedTuple):
    """Answers of the target: the embeddings of their tokens and the outputs of all layers (answers, tokens, size)."""

    model: Any
    embedded: torch.Tensor
    layers: tuple[torch.Tensor, ...]


def sample(target: str, prompts: torch.Tensor) -> Sample:
    """The target's answers to `prompts` (prompts, tokens)."""
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    with torch.inference_mode():
        tokens = model.generate(prompts, max_new_tokens=48, do_sample=False, eos_token_id=None, pad_token_id=0)
        layers = model.model(tokens, output_hidden_states=True).hidden_states
        return Sample(model, model.model.embed_tokens(tokens), layers)


def save_eagle_head(target: str, prompts: torch.Tensor, folder: Path) -> None:
    """Write an EAGLE head to `folder`."""
    found = sample(target, prompts)
    hidden = found.layers[-1]
    # of the token after next, from the next token and the present hidden state
    inputs = torch.cat([found.embedded[:, 1:], hidden[:, :-1]], dim=-1)
    weights = {"fc.weight": _fitted(inputs, hidden[:, 1:]), **_layer(found.model, "layers.0.")}
    del weights["layers.0.input_layernorm.weight"]
    _save(folder, weights, _config(target) | {"num_hidden_layers": 1})


def save_eagle3_head(target: str, prompts: torch.Tensor, folder: Path) -> None:
    """Write an EAGLE-3 head to `folder`: it reads three layers of the target, and its layer the next token as well."""
    found = sample(target, prompts)
    inputs = torch.cat([found.layers[layer] for layer in AUX_LAYERS], dim=-1)
    size = inputs.shape[-1] // len(AUX_LAYERS)
    weights = {"fc.weight": _fitted(inputs[:, :-1], found.layers[-1][:, 1:]), **_layer(found.model, "midlayer.")}
    for name in ("q_proj", "k_proj", "v_proj"):
        key = f"midlayer.self_attn.{name}.weight"
        weights[key] = torch.cat([weights[key], weights[key]], dim=1)  # of the token and of the hidden state
    embedded = found.model.model.embed_tokens.weight.detach().clone()
    weights |= {"midlayer.hidden_norm.weight": torch.ones(size), "norm.weight": torch.ones(size)}
    weights |= {"lm_head.weight": embedded}
    config = {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "tie_word_embeddings": False}
    _save(folder, weights, _config(target) | config | {"draft_vocab_size": len(embedded)})


def save_mtp_model(target: str, prompts: torch.Tensor, folder: Path) -> None:
    """Write the target in the form of MiMo, with a layer for multi-token prediction, to `folder`."""
    found = sample(target, prompts)
    hidden = found.layers[-1]
    inputs = torch.cat([_normed(hidden[:, :-1]), _normed(found.embedded[:, 1:])], dim=-1)
    weights = load_file(Path(target, "model.safetensors"))
    for name, weight in [*weights.items()]:
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            weights[name.replace("weight", "bias")] = torch.zeros(len(weight))
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    head = "model.mtp_layers.0."
    weights |= _layer(found.model, head)
    for name in ("q_proj", "k_proj", "v_proj"):
        rows = len(weights[f"{head}self_attn.{name}.weight"])
        weights[f"{head}self_attn.{name}.bias"] = torch.zeros(rows)
    norms = ("token_layernorm", "hidden_layernorm", "final_layernorm")
    weights |= {f"{head}{name}.weight": torch.ones(hidden.shape[-1]) for name in norms}
    weights[f"{head}input_proj.weight"] = _fitted(inputs, hidden[:, 1:])
    kind = {"architectures": ["MiMoForCausalLM"], "model_type": "qwen2", "num_nextn_predict_layers": 1}
    _save(folder, weights, _config(target) | kind | {"tie_word_embeddings": False})
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (folder / name).write_bytes(Path(target, name).read_bytes())


def _fitted(inputs: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """The matrix that gives `outputs` from `inputs` (answers, tokens, size) best."""
    flat = [tensor.reshape(-1, tensor.shape[-1]).double() for tensor in (inputs, outputs)]
    return torch.linalg.lstsq(*flat).solution.T.float().contiguous()


def _normed(tensor: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(tensor, tensor.shape[-1:], eps=1e-5)


def _layer(model: Any, prefix: str) -> Weights:
    """A random layer of the target's shape."""
    draw = torch.Generator().manual_seed(1)
    weights = {}
    for name, weight in model.model.layers[0].state_dict().items():
        noise = torch.randn(weight.shape, generator=draw) * (ATTENTION if "self_attn" in name else OTHERS)
        weights[prefix + name] = torch.ones_like(weight) if "layernorm" in name else noise
    return weights


def _config(target: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(Path(target, "config.json").read_text(encoding="utf-8"))
    return config


def _save(folder: Path, weights: Weights, config: dict[str, Any]) -> None:
    folder.mkdir()
    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
