"""Whether a draft of the package `speculators` fits a target. Formats: speculators 0.9, `SpeculatorModelConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open

from slipstream_engine.errors import CheckpointError
from slipstream_engine.tensor_files import tensor_files
from slipstream_engine.tokenizer_files import read_json


def check_speculator(target: Path, draft: Path) -> str:
    """What the draft is.

    Raises:
        CheckpointError: it was trained for another target, or a file is broken.
    """
    config, of_target = read_json(draft / "config.json"), _text_config(read_json(target / "config.json"))
    layer = _object(config, "transformer_layer_config")
    trained_for = _object(_object(config, "speculators_config"), "verifier")
    expected = {
        "vocab_size": (layer.get("vocab_size"), of_target.get("vocab_size")),
        "hidden_size": (config.get("target_hidden_size") or layer.get("hidden_size"), of_target.get("hidden_size")),
    }
    for name, (own, wanted) in expected.items():
        if own != wanted:
            raise CheckpointError(f"{name} is {wanted} in the target, and the draft was trained for {own}")
    architectures = [trained_for.get("architectures") or [], of_target.get("architectures") or []]
    if all(architectures) and set(architectures[0]).isdisjoint(architectures[1]):
        raise CheckpointError(f"the draft was trained for {architectures[0][0]}, the target is {architectures[1][0]}")
    layers = int(of_target.get("num_hidden_layers") or 0)
    used = config.get("eagle_aux_hidden_state_layer_ids") or []
    if any(not 0 <= number <= layers for number in used):
        raise CheckpointError(f"the draft reads the target's layers {used}, and the target has {layers}")
    _check_vocabulary(draft, int(layer["vocab_size"]), config.get("draft_vocab_size"))
    proposed = f", proposes {config['draft_vocab_size']} of {layer['vocab_size']} tokens" if _reduced(config) else ""
    return f"{config['speculators_model_type']} for {trained_for.get('name_or_path') or 'an unnamed target'}{proposed}"


def _object(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = config.get(name) or {}
    if not isinstance(value, dict):
        raise CheckpointError(f"config.json: {name} is {value!r}, not an object")
    return value


def _text_config(config: dict[str, Any]) -> Mapping[str, Any]:
    """The part about text of a multimodal model's configuration."""
    text = config.get("text_config")
    return {"architectures": config.get("architectures"), **text} if isinstance(text, dict) else config


def _reduced(config: Mapping[str, Any]) -> bool:
    return config.get("draft_vocab_size") not in (None, config["transformer_layer_config"]["vocab_size"])


def _check_vocabulary(draft: Path, target_vocab: int, draft_vocab: int | None) -> None:
    """A reduced vocabulary has a mask of the target's tokens that it has, `t2d`, and the distance `d2t` from each of
    its tokens to the target's id."""
    files = dict(tensor_files(draft))
    if "t2d" not in files and "d2t" not in files:
        return
    if "t2d" not in files or "d2t" not in files:
        raise CheckpointError(f"{draft}: of the tensors t2d and d2t, one is missing")
    mask, distances = (_read(files[name], name) for name in ("t2d", "d2t"))
    if mask.shape != (target_vocab,) or distances.shape != (draft_vocab,):
        raise CheckpointError(
            f"{draft}: t2d and d2t have the shapes {list(mask.shape)} and {list(distances.shape)}, "
            f"config.json says [{target_vocab}] and [{draft_vocab}]"
        )
    ids = (distances + distances.new_ones(len(distances)).cumsum(0) - 1).tolist()
    if ids != mask.nonzero().flatten().tolist():
        raise CheckpointError(f"{draft}: t2d and d2t name different tokens of the target")


def _read(file: Path, name: str) -> Any:
    with safe_open(file, framework="pt") as shard:
        return shard.get_tensor(name)
