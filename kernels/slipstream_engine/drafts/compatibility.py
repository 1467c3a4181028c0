"""Check that a draft uses the target's token ids. Speculation compares ids, so each id must mean the same text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream_engine.errors import DraftMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slipstream_engine.model.config import ModelConfig
    from slipstream_engine.text.tokenizer import Tokenizer


def check_draft(target: Tokenizer, draft: Tokenizer, target_vocab_rows: int, draft_vocab_rows: int) -> None:
    """Raises DraftMismatchError with the difference: an embedding too small for its tokenizer, different token → id
    entries, or different BOS, EOS or padding ids.

    `…_vocab_rows` are the rows of the output embedding. They may exceed the tokenizer's ids and differ between target
    and draft, because many checkpoints pad them."""
    _check_rows("target", target, target_vocab_rows)
    _check_rows("draft", draft, draft_vocab_rows)
    _check_entries(target, draft)
    for name, of_target, of_draft in (
        ("BOS", target.bos_id, draft.bos_id),
        ("EOS", sorted(target.eos_ids), sorted(draft.eos_ids)),
        ("padding", target.pad_id, draft.pad_id),
    ):
        if of_target != of_draft:
            raise DraftMismatchError(f"the {name} id is {of_target} in the target and {of_draft} in the draft")


def check_eagle_head(target: ModelConfig, head: ModelConfig) -> None:
    """Raises DraftMismatchError if the head was made for a target of another width or with other token ids. It has the
    target's embeddings, and so its tokenizer."""
    for name in ("hidden_size", "vocab_rows"):
        if (own := getattr(head, name)) != (wanted := getattr(target, name)):
            label = "vocab_size" if name == "vocab_rows" else name
            raise DraftMismatchError(f"{label} is {wanted} in the target and {own} in the draft, an EAGLE head")


def _check_rows(model: str, tokenizer: Tokenizer, rows: int) -> None:
    if rows < tokenizer.vocab_size:
        raise DraftMismatchError(f"the {model}'s embedding has {rows} rows, its tokenizer needs {tokenizer.vocab_size}")


def _check_entries(target: Tokenizer, draft: Tokenizer) -> None:
    if target.vocab == draft.vocab:
        return
    differing = sorted(_differing(target, draft))
    _, token = differing[0]
    raise DraftMismatchError(
        f"the draft's vocabulary differs from the target's in {len(differing)} entries "
        f"({len(target.vocab)} tokens in the target, {len(draft.vocab)} in the draft); first, token "
        f"{token!r}: {_entry(target, token)} in the target, {_entry(draft, token)} in the draft"
    )


def _differing(target: Tokenizer, draft: Tokenizer) -> Iterator[tuple[int, str]]:
    """(lower of the two ids, token) of each entry that differs."""
    for token in target.vocab.keys() | draft.vocab.keys():
        ids = target.vocab.get(token), draft.vocab.get(token)
        if ids[0] != ids[1]:
            yield min(token_id for token_id in ids if token_id is not None), token


def _entry(tokenizer: Tokenizer, token: str) -> str:
    return f"id {tokenizer.vocab[token]}" if token in tokenizer.vocab else "missing"
