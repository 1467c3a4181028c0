"""Table of the UTF-8 bytes that each token id adds to the text.

The `decoder` section of tokenizer.json is reduced, once at load, to a table of bytes by id. Decoding then concatenates
bytes, so any division of a sequence into chunks gives the same text, and its cost does not depend on the earlier text.
Supported are the decoders of the Llama family: `ByteLevel` (Llama 3, Qwen) and the SentencePiece forms (`Metaspace`, or
`Replace` + `ByteFallback` + `Fuse` + `Strip`: Llama 2, Mistral).

One deliberate difference from the `tokenizers` library: in a run of byte-fallback tokens that is not valid UTF-8, the
library replaces every byte of the run, valid characters included, which cannot be streamed. Here the valid characters
stay and only the invalid ones become U+FFFD.
"""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes(msgspec.Struct, frozen=True, kw_only=True):
    """`pieces[id]` are a token's bytes: empty for special tokens and for ids without a token. `first_pieces` holds the
    bytes of ids that differ at the start of a text, where SentencePiece drops the space that it added."""

    pieces: tuple[bytes, ...]
    first_pieces: Mapping[int, bytes]

    def piece(self, token_id: int) -> bytes:
        """The bytes of one id; empty for an id beyond the vocabulary (a padding row of the embedding)."""
        return self.pieces[token_id] if 0 <= token_id < len(self.pieces) else b""


class IncrementalDecoder:
    """Turns token ids into text, holding back the bytes of an unfinished character."""

    def __init__(self, table: TokenBytes) -> None:
        self._table = table
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = True

    def prime(self, ids: Sequence[int], *, last: int) -> None:
        """Set `ids` as the preceding text. Only the last few can leave a character unfinished. The others are examined
        only until one has text."""
        self._at_start = not any(self._table.piece(token_id) for token_id in reversed(ids))
        self.feed(ids[-last:])

    def feed(self, ids: Iterable[int]) -> str:
        """The characters that `ids` complete."""
        piece = self._table.piece
        if not self._at_start:
            return self._utf8.decode(b"".join([piece(token_id) for token_id in ids]))
        return self._utf8.decode(b"".join([self._open(token_id) for token_id in ids]))

    def finish(self) -> str:
        """The end of the text: U+FFFD where the last character is unfinished, else nothing."""
        return self._utf8.decode(b"", True)

    def _open(self, token_id: int) -> bytes:
        """Like `piece`, until the first token that has any text."""
        piece = self._table.piece(token_id)
        if not self._at_start or not piece:
            return piece
        self._at_start = False
        return self._table.first_pieces.get(token_id, piece)


class UnsupportedDecoderError(ValueError):
    """The tokenizer's decoder is not supported."""


def build_token_bytes(
    vocab: Mapping[str, int], decoder: Mapping[str, Any] | None, special_ids: Collection[int]
) -> TokenBytes:
    """The table for a vocabulary (token → id) and the `decoder` section of its tokenizer.json.

    Raises UnsupportedDecoderError, naming the decoder."""
    rules = _Rules.of(decoder)
    pieces = [b""] * (max(vocab.values(), default=-1) + 1)
    first_pieces: dict[int, bytes] = {}
    for token, token_id in vocab.items():
        if token_id in special_ids:
            continue
        pieces[token_id] = piece = rules.piece(token)
        first = rules.first_piece(token, piece)
        if first != piece:
            first_pieces[token_id] = first
    return TokenBytes(pieces=tuple(pieces), first_pieces=first_pieces)


class _Rules(msgspec.Struct, kw_only=True):
    """A flattened decoder section. `strip_first` is the character that is removed once from the start of the text.
    `metaspace` is the mark for a space, which is dropped from the first token."""

    byte_level: bool = False
    byte_fallback: bool = False
    replacements: list[tuple[str, str]] = []
    strip_first: bytes = b""
    metaspace: str = ""

    @classmethod
    def of(cls, decoder: Mapping[str, Any] | None) -> _Rules:
        if decoder is None:
            raise UnsupportedDecoderError("it has no decoder")
        rules, fused = cls(), False
        steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
        for step in steps:
            rules._add(step, fused=fused)
            fused = fused or step["type"] in ("ByteLevel", "Fuse")
        return rules

    def _add(self, step: Mapping[str, Any], *, fused: bool) -> None:
        match step:
            case {"type": "ByteLevel"} if not fused:
                self.byte_level = True
            case {"type": "ByteFallback"} if not fused:
                self.byte_fallback = True
            case {"type": "Fuse"}:
                pass
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if not fused:
                self.replacements.append((old, new))
            case {"type": "Strip", "content": str(mark), "start": 0 | 1 as start, "stop": 0} if (
                fused and mark.isascii()
            ):
                self.strip_first = mark.encode() * start
            case {"type": "Metaspace", "replacement": str(mark)} if not fused:
                self.replacements.append((mark, " "))
                # Files from before tokenizers 0.19 have `add_prefix_space` instead.
                prepends = step.get("prepend_scheme", "always") != "never" and step.get("add_prefix_space", True)
                self.metaspace = mark if prepends else ""
            case _:
                raise UnsupportedDecoderError(f"decoder {dict(step)} is not supported")

    def piece(self, token: str) -> bytes:
        if self.byte_level:
            raw = [_BYTE_OF_CHARACTER.get(character) for character in token]
            # An added token may contain characters without a byte; it is plain text as a whole.
            return token.encode() if None in raw else bytes(byte for byte in raw if byte is not None)
        for old, new in self.replacements:
            token = token.replace(old, new)
        if self.byte_fallback and (found := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(found[1], 16)])
        return token.encode()

    def first_piece(self, token: str, piece: bytes) -> bytes:
        if self.metaspace:
            return self.piece(token.replace(self.metaspace, ""))
        return piece.removeprefix(self.strip_first)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's byte alphabet: printable bytes map to themselves, the others to U+0100 onwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(hidden)}


_BYTE_OF_CHARACTER: Mapping[str, int] = _byte_alphabet()


def decode_all(table: TokenBytes, ids: Sequence[int]) -> str:
    """The text of a whole sequence, from the start of a text."""
    decoder = IncrementalDecoder(table)
    return decoder.feed(ids) + decoder.finish()
