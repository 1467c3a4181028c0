"""Tokenizer: ids and text equal the library's; what the folder's files say is what the attributes hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream_engine.errors import CheckpointError, RequestError
from slipstream_engine.text.tokenizer import Tokenizer

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
# No deadline: a busy machine is not a failure.
THOROUGH = settings(deadline=None, max_examples=150)


@THOROUGH
@given(text=TEXT)
def test_encode_equals_the_library(tokenizer: Tokenizer, library: tokenizers.Tokenizer, text: str) -> None:
    plain = library.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text) == tuple(library.encode(text).ids)
    assert tokenizer.encode(text, add_special=False) == tuple(plain)


@THOROUGH
@given(text=TEXT)
def test_decode_of_encoded_text_equals_the_library(
    tokenizer: Tokenizer, library: tokenizers.Tokenizer, text: str
) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == library.decode(ids)


@THOROUGH
@given(ids=st.lists(st.integers(0, 420), max_size=30))
def test_decode_of_any_byte_level_ids_equals_the_library(
    byte_level: Tokenizer, byte_level_library: tokenizers.Tokenizer, ids: list[int]
) -> None:
    assert byte_level.decode(ids) == byte_level_library.decode(ids)


def test_valid_characters_of_a_broken_byte_run_are_kept(write_folder: Callable[..., Path]) -> None:
    tokenizer = Tokenizer.load(write_folder("byte_fallback"))
    run = [tokenizer.vocab[f"<0x{byte:02X}>"] for byte in "你".encode() + b"\xff"]
    assert tokenizer.decode([tokenizer.vocab["a"], *run, tokenizer.vocab["b"]]) == "a你\ufffdb"


def test_special_tokens_and_unknown_ids_have_no_text(tokenizer: Tokenizer) -> None:
    body = tokenizer.encode("one", add_special=False)
    ids = [*tokenizer.special_ids, *body, tokenizer.vocab_size + 7, *tokenizer.special_ids]
    assert tokenizer.decode(ids) == "one"


def test_added_tokens_that_are_not_special_keep_their_text(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("a<tool call>b", add_special=False)
    assert byte_level.vocab["<tool call>"] in ids
    assert byte_level.decode(ids) == "a<tool call>b"


def test_named_ids_and_size_come_from_the_folder(byte_level: Tokenizer) -> None:
    vocab = byte_level.vocab
    assert byte_level.bos_id == vocab["<|bos|>"]
    assert byte_level.pad_id == vocab["<|pad|>"]
    assert byte_level.eos_ids == {vocab["<|end|>"]}
    assert byte_level.vocab_size == max(vocab.values()) + 1


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"generation_config.json": {"eos_token_id": [1, 3]}}, {1, 3}),
        ({"config.json": {"eos_token_id": 3}}, {1, 3}),
        ({"generation_config.json": {"eos_token_id": 4}, "config.json": {"eos_token_id": 3}}, {1, 4}),
        ({"generation_config.json": {"eos_token_id": None}, "config.json": {"eos_token_id": 3}}, {1, 3}),
        (
            {"special_tokens_map.json": {"eos_token": {"content": "<|user|>"}}, "tokenizer_config.json": {}},
            {3},
        ),
        ({"tokenizer_config.json": {}}, set()),
    ],
)
def test_eos_ids_come_from_every_file_that_names_them(
    write_folder: Callable[..., Path], files: dict[str, Any], expected: set[int]
) -> None:
    assert Tokenizer.load(write_folder(files=files)).eos_ids == expected


def test_named_token_that_tokenizer_json_does_not_mark_becomes_special(
    write_folder: Callable[..., Path], byte_level_folder: Path
) -> None:
    content = json.loads((byte_level_folder / "tokenizer.json").read_text())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "<|end|>"]
    tokenizer = Tokenizer.load(write_folder(files={"tokenizer.json": content}))
    (eos_id,) = tokenizer.eos_ids
    assert tokenizer.encode("a<|end|>", add_special=False)[-1] == eos_id
    assert tokenizer.decode([eos_id]) == ""


def test_truncation_and_padding_in_the_file_do_not_change_prompts(
    write_folder: Callable[..., Path], byte_level: Tokenizer, byte_level_library: tokenizers.Tokenizer
) -> None:
    limited = tokenizers.Tokenizer.from_str(byte_level_library.to_str())
    limited.enable_truncation(4)
    limited.enable_padding(length=64)
    tokenizer = Tokenizer.load(write_folder(files={"tokenizer.json": limited.to_str()}))
    for text in ("a", "a sentence of many words"):
        assert tokenizer.encode(text) == byte_level.encode(text)


def test_lone_surrogate_is_refused_with_its_place(byte_level: Tokenizer) -> None:
    with pytest.raises(RequestError, match=r"text: character 2 is a lone surrogate \(U\+D83D\)"):
        byte_level.encode("ab\ud83d")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tokenizer.json": None}, r"tokenizer\.json: no such file"),
        ({"tokenizer.json": "{"}, r"tokenizer\.json: not a tokenizer: "),
        ({"tokenizer.json": '{"model": 3}'}, r"tokenizer\.json: not a tokenizer: "),
        ({"tokenizer_config.json": "[1"}, r"tokenizer_config\.json: not valid JSON: "),
        ({"tokenizer_config.json": [1]}, r"tokenizer_config\.json: holds a list"),
        ({"tokenizer_config.json": {"bos_token": 3}}, r"tokenizer_config\.json: bos_token is 3"),
        ({"tokenizer_config.json": {"bos_token": "<s>"}}, r"bos_token '<s>' is not a token"),
        ({"generation_config.json": {"eos_token_id": "x"}}, r"generation_config\.json: eos_token_id is 'x'"),
        ({"config.json": {"eos_token_id": 9999}}, r"config\.json: eos_token_id 9999 is not an id"),
        ({"config.json": "\x00"}, r"config\.json: not valid JSON"),
        ({"chat_template.jinja": "{% for %}"}, r"chat_template\.jinja: .* not valid Jinja: line 1: "),
        ({"chat_template.json": {"chat_template": 3}}, r"chat_template\.json: chat_template is neither"),
    ],
)
def test_broken_folder_is_refused_naming_the_file(
    write_folder: Callable[..., Path], files: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        Tokenizer.load(write_folder(files=files))


def test_file_that_is_not_utf8_is_refused(write_folder: Callable[..., Path]) -> None:
    folder = write_folder()
    (folder / "tokenizer_config.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: cannot be read"):
        Tokenizer.load(folder)


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        (None, "it has no decoder"),
        ({"type": "WordPiece", "prefix": "##", "cleanup": True}, "WordPiece.* is not supported"),
    ],
)
def test_unsupported_decoder_is_refused(
    write_folder: Callable[..., Path], byte_level_folder: Path, decoder: dict[str, Any] | None, message: str
) -> None:
    content = json.loads((byte_level_folder / "tokenizer.json").read_text())
    content["decoder"] = decoder
    with pytest.raises(CheckpointError, match=rf"tokenizer\.json: .*{message}"):
        Tokenizer.load(write_folder(files={"tokenizer.json": content}))
