"""Whether a draft of the package `speculators` fits a target. Format: `SpeculatorModelConfig` of speculators 0.9."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec
from safetensors import safe_open

from slipstream_engine.errors import CheckpointError
from slipstream_engine.model.tensor_files import tensor_files
from slipstream_engine.text.tokenizer_files import read_json

_T = TypeVar("_T")


class _Target(msgspec.Struct):
    """What `config.json` of a target says of its language model."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    architectures: list[str] | None = None


class _Layer(msgspec.Struct):
    vocab_size: int
    hidden_size: int


class _Verifier(msgspec.Struct):
    name_or_path: str | None = None
    architectures: list[str] | None = None


class _Speculators(msgspec.Struct):
    verifier: _Verifier = msgspec.field(default_factory=_Verifier)


class _Draft(msgspec.Struct):
    """What `config.json` of a draft says. Its target is called the verifier there."""

    speculators_model_type: str
    transformer_layer_config: _Layer
    speculators_config: _Speculators = msgspec.field(default_factory=_Speculators)
    draft_vocab_size: int | None = None
    target_hidden_size: int | None = None
    eagle_aux_hidden_state_layer_ids: list[int] | None = None


def check_speculator(target: Path, draft: Path) -> str:
    """What the draft is.

    Raises:
        CheckpointError: it was trained for another target, or a file is broken.
    """
    raw = read_json(target / "config.json")
    if isinstance(text := raw.get("text_config"), dict):  # of a multimodal model
        raw = {"architectures": raw.get("architectures"), **text}
    of_target = _converted(raw, _Target, target)
    of_draft = _converted(read_json(draft / "config.json"), _Draft, draft)
    _check_target(of_target, of_draft)
    vocabulary = of_draft.transformer_layer_config.vocab_size
    _check_vocabulary(draft, vocabulary, of_draft.draft_vocab_size)
    reduced = of_draft.draft_vocab_size not in (None, vocabulary)
    proposed = f", proposes {of_draft.draft_vocab_size} of {vocabulary} tokens" if reduced else ""
    trained_for = of_draft.speculators_config.verifier.name_or_path or "an unnamed target"
    return f"{of_draft.speculators_model_type} for {trained_for}{proposed}"


def _converted(raw: Any, kind: type[_T], folder: Path) -> _T:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as exc:
        raise CheckpointError(f"{folder / 'config.json'}: {exc}") from exc


def _check_target(target: _Target, draft: _Draft) -> None:
    layer = draft.transformer_layer_config
    for name, own, wanted in (
        ("vocab_size", layer.vocab_size, target.vocab_size),
        ("hidden_size", draft.target_hidden_size or layer.hidden_size, target.hidden_size),
    ):
        if own != wanted:
            raise CheckpointError(f"{name} is {wanted} in the target, and the draft was trained for {own}")
    trained_for, architectures = draft.speculators_config.verifier.architectures, target.architectures
    if trained_for and architectures and set(trained_for).isdisjoint(architectures):
        raise CheckpointError(f"the draft was trained for {trained_for[0]}, the target is {architectures[0]}")
    used = draft.eagle_aux_hidden_state_layer_ids or []
    if any(not 0 <= number <= target.num_hidden_layers for number in used):
        raise CheckpointError(
            f"the draft reads the target's layers {used}, and the target has {target.num_hidden_layers}"
        )


def _check_vocabulary(draft: Path, target_vocab: int, draft_vocab: int | None) -> None:
    """With a reduced vocabulary, `t2d` says for each of the target's tokens whether the draft has it, and `d2t` has for
    each of the draft's tokens the distance to the target's id."""
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
