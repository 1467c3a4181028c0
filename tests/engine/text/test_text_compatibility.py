"""check_draft: a draft is taken only where every id means the same, and a refusal says what differs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slipstream_engine.drafts.compatibility import check_draft
from slipstream_engine.errors import DraftMismatchError
from slipstream_engine.text.tokenizer import Tokenizer


def test_same_tokenizer_fits_also_with_padded_embeddings(byte_level: Tokenizer, byte_level_folder: Path) -> None:
    draft = Tokenizer.load(byte_level_folder)
    check_draft(byte_level, draft, byte_level.vocab_size, byte_level.vocab_size + 128)
    check_draft(byte_level, draft, byte_level.vocab_size + 64, byte_level.vocab_size)


@pytest.mark.parametrize(("target_rows", "draft_rows", "model"), [(10, 1000, "target"), (1000, 10, "draft")])
def test_embedding_smaller_than_the_tokenizer_is_refused(
    byte_level: Tokenizer, target_rows: int, draft_rows: int, model: str
) -> None:
    with pytest.raises(DraftMismatchError, match=f"the {model}'s embedding has 10 rows, its tokenizer needs "):
        check_draft(byte_level, byte_level, target_rows, draft_rows)


def test_swapped_ids_are_named_with_token_and_both_ids(
    byte_level: Tokenizer, byte_level_folder: Path, write_folder: Callable[..., Path]
) -> None:
    content = json.loads((byte_level_folder / "tokenizer.json").read_text())
    vocab = content["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    draft = Tokenizer.load(write_folder(files={"tokenizer.json": content}))
    expected = rf"in 2 entries .*first, token 'a': id {vocab['b']} in the target, id {vocab['a']} in the draft"
    with pytest.raises(DraftMismatchError, match=expected):
        check_draft(byte_level, draft, 1000, 1000)


def test_token_that_one_side_lacks_is_named(
    byte_level: Tokenizer, byte_level_folder: Path, write_folder: Callable[..., Path]
) -> None:
    content = json.loads((byte_level_folder / "tokenizer.json").read_text())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "<tool call>"]
    smaller = Tokenizer.load(write_folder(files={"tokenizer.json": content}))
    size = byte_level.vocab_size
    with pytest.raises(DraftMismatchError, match=rf"in 1 entries \({size} tokens .*'<tool call>': id .*, missing in"):
        check_draft(byte_level, smaller, 1000, 1000)
    with pytest.raises(DraftMismatchError, match="'<tool call>': missing in the target, id"):
        check_draft(smaller, byte_level, 1000, 1000)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"bos_token": None}, "BOS"),
        ({"eos_token": "<|user|>"}, "EOS"),
        ({"pad_token": "<|user|>"}, "padding"),
    ],
)
def test_other_special_ids_are_named(
    byte_level: Tokenizer, write_folder: Callable[..., Path], config: dict[str, Any], name: str
) -> None:
    draft = Tokenizer.load(write_folder(**config))
    with pytest.raises(DraftMismatchError, match=f"the {name} id is .* in the target and .* in the draft"):
        check_draft(byte_level, draft, 1000, 1000)


def test_other_kind_of_tokenizer_is_refused(byte_level: Tokenizer, write_folder: Callable[..., Path]) -> None:
    with pytest.raises(DraftMismatchError, match="vocabulary differs"):
        check_draft(byte_level, Tokenizer.load(write_folder("byte_fallback")), 1000, 1000)
