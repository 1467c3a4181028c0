"""Small real tokenizers, trained here and saved as Hugging Face folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from slipstream_engine.text.tokenizer import Tokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

SENTENCES = [
    "The customer called about invoice 4711 and was charged twice.",
    "Ein Überblick über die Verträge: größer, schöner, später.",
    "你好，世界。今天天气很好。 今日は良い天気ですね。",
    "Party 🎉🎉 and family 👨‍👩‍👧 with a flag 🇩🇪 and naïve café.",
    "SELECT name FROM users WHERE id = 1;\n\nUser: END ### STOP",
]
SPECIAL = ["<|bos|>", "<|end|>", "<|pad|>", "<|user|>", "<|assistant|>", "<|system|>"]
NAMED = {"bos_token": "<|bos|>", "eos_token": "<|end|>", "pad_token": "<|pad|>"}
CHATML = (
    "{{ bos_token }}{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}<|end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)

FolderWriter = Callable[..., Path]


def _byte_level() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.add_tokens(["<tool call>"])  # added, but not special: it has text
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", special_tokens=[("<|bos|>", tokenizer.token_to_id("<|bos|>"))]
    )
    return tokenizer


def _sentencepiece(*, metaspace: bool) -> tokenizers.Tokenizer:
    """As Llama 2 has it (byte fallback; a decoder of four steps) or with the older Metaspace pair."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=150, special_tokens=["<unk>", *SPECIAL], show_progress=False)
    tokenizer.train_from_iterator([text for text in SENTENCES if text.isascii()], trainer)
    content = json.loads(tokenizer.to_str())
    vocab = content["model"]["vocab"]
    vocab.update({f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)})
    content["model"]["byte_fallback"] = True
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
    if metaspace:
        tokenizer.normalizer = None
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
    else:
        steps = [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
        tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


_BUILDERS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "byte_level": _byte_level,
    "byte_fallback": lambda: _sentencepiece(metaspace=False),
    "metaspace": lambda: _sentencepiece(metaspace=True),
}


@pytest.fixture(scope="session")
def write_folder(tmp_path_factory: pytest.TempPathFactory) -> FolderWriter:
    """Writes a checkpoint folder: `write_folder(kind, tokenizer_config={...}, files={"name": content})`. A
    content of None leaves the file out; a string is written as it is, anything else as JSON."""
    built = {kind: builder().to_str() for kind, builder in _BUILDERS.items()}

    def write(kind: str = "byte_level", *, files: dict[str, Any] | None = None, **config: Any) -> Path:
        folder = tmp_path_factory.mktemp(kind)
        contents = {
            "tokenizer.json": built[kind],
            "tokenizer_config.json": NAMED | {"chat_template": CHATML} | config,
        }
        for name, content in (contents | (files or {})).items():
            if content is not None:
                text = content if isinstance(content, str) else json.dumps(content)
                (folder / name).write_text(text, encoding="utf-8")
        return folder

    return write


@pytest.fixture(scope="session", params=list(_BUILDERS))
def folder(request: pytest.FixtureRequest, write_folder: FolderWriter) -> Path:
    """A folder of each kind of tokenizer in turn."""
    return write_folder(request.param)


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


@pytest.fixture(scope="session")
def library(folder: Path) -> tokenizers.Tokenizer:
    """The same tokenizer as the `tokenizers` library sees it: the reference for text and ids."""
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="session")
def byte_level_folder(write_folder: FolderWriter) -> Path:
    return write_folder("byte_level")


@pytest.fixture(scope="session")
def byte_level(byte_level_folder: Path) -> Tokenizer:
    return Tokenizer.load(byte_level_folder)


@pytest.fixture(scope="session")
def byte_level_library(byte_level_folder: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(byte_level_folder / "tokenizer.json"))
