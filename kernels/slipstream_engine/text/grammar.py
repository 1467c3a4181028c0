"""Grammars for answers, by the library `llguidance`: JSON schemas, regular expressions, choices, Lark and GBNF.

A grammar is text in the library's own form. `GrammarCompiler` turns it into the state of one answer, which allows
tokens as a bitmask (`LogitAdjustments.bitmask`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from numpy.typing import NDArray

from slipstream_engine.errors import RequestError

_ALL = np.int32(-1)
_KEPT = 64
_COMPACT: Any = {"whitespace_flexible": False}
_SPACED: Any = {**_COMPACT, "item_separator": ", ", "key_separator": ": "}
Mask = NDArray[np.int32]


def json_grammar(schema: str | Mapping[str, Any], field: str, *, spaces: bool = True) -> str:
    """The grammar of a JSON schema, as Python writes JSON: with `spaces` after `:` and `,`, or without. Raises
    RequestError with `field` if it is no JSON object.

    Small models write endless spaces where they may. A grammar without choice between spaces also prescribes more text,
    which makes good drafts."""
    try:
        given = json.dumps(schema) if isinstance(schema, Mapping) else schema
        return str(LLMatcher.grammar_from_json_schema(given, defaults=_SPACED if spaces else _COMPACT))
    except ValueError as exc:
        raise RequestError(f"{field} is not a JSON schema: {exc}", param=field) from exc


def regex_grammar(pattern: str) -> str:
    return str(LLMatcher.grammar_from_regex(pattern))


def text_choice(texts: Sequence[str]) -> str:
    return str(LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, texts))))


def lark_grammar(text: str) -> str:
    """The grammar of Lark or GBNF `text`. Raises RequestError for GBNF that cannot be parsed."""
    try:
        return str(LLMatcher.grammar_from_lark(any_to_lark(text)))
    except Exception as exc:  # the library raises bare Exception for some errors in GBNF
        problem = " ".join(str(exc).split())
        raise RequestError(f"the grammar is not supported: {problem:.300}", param="structured_outputs.grammar") from exc


class GrammarCompiler:
    """Compiles grammars for one tokenizer, whose file has the content `tokenizer`. Thread-safe. It keeps the latest
    grammars, because many answers have the same one, and a large one takes a second."""

    def __init__(self, tokenizer: str, eos_ids: Sequence[int], vocabulary: int) -> None:
        self._tokenizer, self._eos_ids, self._vocabulary = tokenizer, eos_ids, vocabulary
        self._compiled = lru_cache(_KEPT)(self._compile)

    @cached_property
    def _library(self) -> LLTokenizer:
        return LLTokenizer(self._tokenizer, n_vocab=self._vocabulary, eos_token=list(self._eos_ids))

    def compile(self, grammar: str, answer: Sequence[int] = ()) -> GrammarState:
        """The state after the tokens `answer`. Raises RequestError for an invalid grammar, or tokens outside of it."""
        matcher = self._compiled(grammar).deep_copy()
        if answer and not matcher.consume_tokens(list(answer)):
            raise RequestError("the tokens to resume after do not have the answer's format")
        return GrammarState(matcher, self._eos_ids)

    def _compile(self, grammar: str) -> LLMatcher:
        matcher = LLMatcher(self._library, grammar, log_level=0)
        if matcher.is_error():
            first = matcher.get_error().strip().splitlines()[0]
            raise RequestError(f"the format of the answer is not supported: {first:.300}", param="response_format")
        return matcher


class GrammarState:
    """The grammar of one answer after its tokens so far."""

    def __init__(self, matcher: LLMatcher, eos_ids: Sequence[int]) -> None:
        self._matcher, self._eos_ids = matcher, eos_ids

    def allowed(self, draft: Sequence[int]) -> int:
        """The number of first tokens in `draft` that the grammar allows."""
        return int(self._matcher.validate_tokens(list(draft))) if draft else 0

    def forced(self, most: int) -> list[int]:
        """The next tokens, at most `most`, of text that the grammar prescribes, such as the name of a field. The model
        may still choose other tokens for the same text."""
        return self._matcher.compute_ff_tokens()[:most] if most else []

    def fill(self, rows: Mask, draft: Sequence[int]) -> None:
        """Write the masks into `rows` [len(draft) + 1, words]: row j has the tokens that are allowed after j tokens of
        `draft`, which the grammar allows. Rows after a drafted EOS are left as they are."""
        fill_next_token_bitmask(self._matcher, rows, 0)
        consumed = 0
        for token in draft:
            if token in self._eos_ids:
                break
            self._matcher.consume_token(token)
            consumed += 1
            fill_next_token_bitmask(self._matcher, rows, consumed)
        self._matcher.rollback(consumed)

    def accept(self, token_ids: Sequence[int]) -> None:
        """Go on after tokens of the answer, which has not ended."""
        self._matcher.consume_tokens(list(token_ids))


def new_masks(rows: int, vocabulary: int) -> Mask:
    """Masks [rows, words] that allow every token."""
    masks: Mask = allocate_token_bitmask(rows, vocabulary)
    masks.fill(_ALL)
    return masks
