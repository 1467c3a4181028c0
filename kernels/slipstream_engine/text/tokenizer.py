"""Converts text to token ids and back, with the `tokenizers` library and a Hugging Face folder."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tokenizers

from slipstream_engine.errors import CheckpointError, RequestError
from slipstream_engine.text.token_bytes import TokenBytes, UnsupportedDecoderError, build_token_bytes, decode_all
from slipstream_engine.text.tokenizer_files import TokenizerSettings, read_settings, read_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from slipstream_engine.text.chat_template import ChatTemplate

_SURROGATE = re.compile("[\ud800-\udfff]")
# The first of these characters that no message contains marks the cut in a special token's text.
_CUT_MARKS = range(0xE000, 0x110000)


class Tokenizer:
    """A checkpoint's tokenizer. Immutable; safe to share between threads.

    `vocab` maps token to id, added tokens included. `vocab_size` is the highest id + 1, the minimum number of rows of
    an embedding. `special_ids` are the tokens without text: those marked special, the named ones and every EOS.
    `token_bytes` holds the bytes that each id adds to the text.
    """

    def __init__(self, backend: tokenizers.Tokenizer, settings: TokenizerSettings) -> None:
        """Raises CheckpointError. Most callers use `load`."""
        self._backend = backend
        self.vocab: Mapping[str, int] = backend.get_vocab(with_added_tokens=True)
        self.vocab_size: int = max(self.vocab.values(), default=-1) + 1
        self._tokens = settings.tokens
        _prepare(backend, [text for text in settings.tokens.values() if text in self.vocab])
        self.bos_id: int | None = self._named("bos_token")
        self.pad_id: int | None = self._named("pad_token")
        self.eos_ids: frozenset[int] = self._eos(settings)
        added = backend.get_added_tokens_decoder()
        marked = {token_id for token_id, token in added.items() if token.special}
        self.special_ids: frozenset[int] = frozenset(marked | self.eos_ids)
        self.token_bytes: TokenBytes = _token_bytes(backend, self.vocab, self.special_ids)
        self._template: ChatTemplate | None = settings.chat_template
        self._control_texts = _overlapping([token.content for token in added.values() if token.special])

    @classmethod
    def load(cls, folder: Path, *, checkpoint: Path | None = None) -> Tokenizer:
        """Read tokenizer.json and the other tokenizer files in `folder`. If the model is in another folder,
        `checkpoint` is that folder; its files list the EOS ids. Raises CheckpointError with file and problem."""
        file = folder / "tokenizer.json"
        text = read_text(file)
        if text is None:
            raise CheckpointError(f"{file}: no such file; a Hugging Face folder with a fast tokenizer is needed")
        try:
            backend = tokenizers.Tokenizer.from_str(text)
        except Exception as exc:  # the library raises bare Exception on a file it cannot parse
            raise CheckpointError(f"{file}: not a tokenizer: {exc}") from exc
        settings = read_settings(folder, checkpoint or folder)
        try:
            return cls(backend, settings)
        except CheckpointError as exc:
            raise CheckpointError(f"{folder}: {exc}") from exc

    def encode(self, text: str, *, add_special: bool = True) -> tuple[int, ...]:
        """The ids of `text`; `add_special` adds the tokens of the tokenizer's post-processor, usually BOS.

        As in Hugging Face, a special token's text becomes that token, because raw text is trusted as a whole prompt.
        Raises RequestError if the text is not valid Unicode."""
        check_text(text, "text")
        return self._ids(text, add_special=add_special)

    @property
    def definition(self) -> str:
        """The content of the tokenizer's file, for other libraries."""
        return str(self._backend.to_str())

    def token_text(self, token_id: int) -> str:
        """One token as text: a special token's own name, and U+FFFD for parts of characters."""
        if token_id in self.special_ids:
            return self._backend.id_to_token(token_id) or ""
        return self.token_utf8(token_id).decode(errors="replace")

    def token_utf8(self, token_id: int) -> bytes:
        """The bytes that the token adds to the text; a special token's own name."""
        if token_id in self.special_ids:
            return (self._backend.id_to_token(token_id) or "").encode()
        return self.token_bytes.piece(token_id)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a whole sequence. Special tokens and unknown ids have no text; invalid UTF-8 becomes U+FFFD."""
        return decode_all(self.token_bytes, ids)

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """The prompt for a chat: template, generation prompt, and no BOS except the template's own.

        The ids equal Hugging Face's unless a message contains the text of a special token. Messages are data, so
        `<|end|>` in a message becomes ordinary tokens with the same text and cannot close the turn. (A special token of
        a single character cannot be cut and stays.) Raises RequestError if there is no template, if the template
        rejects the messages, or if they are not valid Unicode."""
        if self._template is None:
            raise RequestError("messages: this model has no chat template; send text instead")
        _check_messages(messages)
        return self._ids(*self._pieces(self._template, messages), add_special=False)

    def _pieces(self, template: ChatTemplate, messages: Sequence[Mapping[str, str]]) -> list[str]:
        """The rendered prompt in pieces. It is cut after the first character of each special token's text in a message,
        so that no piece contains a special token from a message."""
        pattern = self._control_texts
        values = [value for message in messages for value in message.values()]
        if pattern is None or not any(pattern.search(value) for value in values):
            return [template.render(messages)]
        used = set().union(*values)
        mark = next((chr(code) for code in _CUT_MARKS if chr(code) not in used), None)
        if mark is None:
            raise RequestError("messages: together they contain every character of Unicode")
        marked = [
            {field: pattern.sub(lambda found: found[0] + mark, value) for field, value in message.items()}
            for message in messages
        ]
        return template.render(marked).split(mark)

    def _ids(self, *pieces: str, add_special: bool) -> tuple[int, ...]:
        # The batch method releases the GIL, so a long text does not stall other threads.
        encodings = self._backend.encode_batch_fast(list(pieces), add_special_tokens=add_special)
        return tuple(token_id for encoding in encodings for token_id in encoding.ids)

    def _named(self, field: str) -> int | None:
        """The id of a named special token, or None."""
        text = self._tokens.get(field)
        if text is None:
            return None
        if text not in self.vocab:
            raise CheckpointError(f"{field} {text!r} is not a token of tokenizer.json")
        return self.vocab[text]

    def _eos(self, settings: TokenizerSettings) -> frozenset[int]:
        """The tokenizer's EOS and the EOS ids in the model files."""
        for token_id, file in settings.eos_ids.items():
            if not 0 <= token_id < self.vocab_size:
                raise CheckpointError(
                    f"{file}: eos_token_id {token_id} is not an id of the tokenizer (0 to {self.vocab_size - 1})"
                )
        own = self._named("eos_token")
        return frozenset(settings.eos_ids) | (frozenset() if own is None else {own})


def check_text(text: str, name: str) -> None:
    """Raise RequestError with the field name if `text` contains a lone surrogate, which has no UTF-8 encoding."""
    if found := _SURROGATE.search(text):
        raise RequestError(
            f"{name}: character {found.start()} is a lone surrogate (U+{ord(found[0]):04X}), not valid Unicode"
        )


def _check_messages(messages: Sequence[Mapping[str, str]]) -> None:
    """Check the types of messages, which come from JSON."""
    if not messages:
        raise RequestError("messages is empty")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise RequestError(f"messages[{number}] is of type {type(message).__name__}, not an object")
        for field, value in message.items():
            if not isinstance(value, str):
                raise RequestError(f"messages[{number}].{field} is of type {type(value).__name__}, not text")
            check_text(value, f"messages[{number}].{field}")


def _prepare(backend: tokenizers.Tokenizer, named: Sequence[str]) -> None:
    """Turn truncation and padding off, and mark named tokens as special if tokenizer.json does not, as in Hugging
    Face."""
    backend.no_truncation()
    backend.no_padding()
    marked = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    backend.add_special_tokens([text for text in named if text not in marked])


def _token_bytes(backend: tokenizers.Tokenizer, vocab: Mapping[str, int], special_ids: frozenset[int]) -> TokenBytes:
    decoder: dict[str, Any] | None = json.loads(backend.to_str())["decoder"]
    try:
        return build_token_bytes(vocab, decoder, special_ids)
    except UnsupportedDecoderError as exc:
        raise CheckpointError(f"tokenizer.json: {exc}") from exc


def _overlapping(texts: Sequence[str]) -> re.Pattern[str] | None:
    """A pattern that matches the first character of every occurrence of one of `texts`, overlapping ones included."""
    cuttable = [text for text in texts if len(text) > 1]
    if not cuttable:
        return None
    return re.compile("|".join(f"{re.escape(text[0])}(?={re.escape(text[1:])})" for text in cuttable), re.DOTALL)
