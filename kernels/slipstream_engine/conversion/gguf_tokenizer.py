"""Converts the tokenizer of a GGUF file to Hugging Face format: `tokenizer.json` and `tokenizer_config.json`."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from slipstream_engine.conversion.gguf_reading import GgufFile
from slipstream_engine.errors import CheckpointError

_CONTROL = 3  # llama.cpp's LLAMA_TOKEN_TYPE_CONTROL: a token without text
_NAMED_TOKENS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}


def write_tokenizer(source: GgufFile, folder: Path) -> None:
    """Write both files into `folder`.

    Raises:
        CheckpointError: the kind of tokenizer is not supported, or its metadata are incomplete.
    """
    _check_supported(source)
    tokens = source.get("tokenizer.ggml.tokens", list)
    merges = [tuple(merge.split(" ")) for merge in source.get("tokenizer.ggml.merges", list)]
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges))
    # llama.cpp's pre-tokenizer `smollm`: single digits, then GPT-2's expression.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = source.get("tokenizer.ggml.token_type", list)
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {name: tokens[source.get(field, int)] for name, field in _NAMED_TOKENS.items()}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **named,
        "model_max_length": source.get("llama.context_length", int),
        "clean_up_tokenization_spaces": False,
        "chat_template": source.get("tokenizer.chat_template", str),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _check_supported(source: GgufFile) -> None:
    for field, supported in (("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "smollm")):
        if (value := source.get(field, str)) != supported:
            raise CheckpointError(f"{source.path}: {field} {value!r} is not supported, only {supported!r}")
    # The chat template writes BOS itself, so a tokenizer that adds BOS would duplicate it.
    if source.has("tokenizer.ggml.add_bos_token") and source.get("tokenizer.ggml.add_bos_token", bool):
        raise CheckpointError(f"{source.path}: tokenizer.ggml.add_bos_token is not supported")
