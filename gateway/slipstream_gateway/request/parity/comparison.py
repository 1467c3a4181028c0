"""Two answers to one request: collected while they stream, parsed later, and compared."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from itertools import zip_longest

import msgspec
from slipstream_core.errors import Incomparable

from slipstream_gateway.upstreams.base import Piece, Stream, Tokens, Usage, Wire
from slipstream_gateway.upstreams.openai_answer import AnswerReader

MAX_ANSWER_BYTES = 1024 * 1024
_BYTES_PER_TOKEN = 64  # the memory of an id, and of its share of the piece
_TOO_LARGE, _UNREADABLE = "too_large", "unreadable"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One whole answer. `token_ids` None: the server returns no ids, so that texts are compared. `margins` is as in
    `Tokens`. `prompt_token_ids` is empty if the server does not return them."""

    text: str
    token_ids: tuple[int, ...] | None
    finish_reason: str | None
    margins: tuple[float, ...] = ()
    prompt_token_ids: tuple[int, ...] = ()

    @property
    def sha256(self) -> str:
        """The hash of the text in UTF-8. A lone half of a surrogate pair counts as a question mark."""
        return hashlib.sha256(self.text.encode(errors="replace")).hexdigest()

    def __len__(self) -> int:
        return len(self.text) if self.token_ids is None else len(self.token_ids)


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first difference of two answers, as the index of a `unit` (`token` or `character`). If all units are equal
    and only the finish reason differs, `index` is the length of both. `margin` is that of the plain answer's token
    there, None if unknown."""

    index: int
    unit: str
    margin: float | None


class Collector:
    """The pieces of one answer with one choice, up to `MAX_ANSWER_BYTES`. They are parsed by `read` only."""

    def __init__(self, *, stream: bool) -> None:
        self.size_bytes = 0
        self._stream = stream
        self._pieces: list[Piece] = []

    def add(self, piece: Piece) -> None:
        """Stores `piece`. Raises `Incomparable` if the answer is too large; nothing is added afterwards."""
        self.size_bytes += _size_bytes(piece)
        if self.size_bytes > MAX_ANSWER_BYTES:
            raise Incomparable(_TOO_LARGE)
        self._pieces.append(piece)

    async def read(self) -> Answer:
        """Parses the answer, and yields to other tasks between the pieces. Raises `Incomparable` if the answer is cut
        short, an error, or in an unknown form."""
        tokens = [piece for piece in self._pieces if isinstance(piece, Tokens)]
        wires = [piece for piece in self._pieces if isinstance(piece, Wire)]
        if not self._pieces or (tokens and wires):
            raise Incomparable(_UNREADABLE)
        return _of_tokens(tokens) if tokens else await _of_wire(wires, stream=self._stream)


def _size_bytes(piece: Piece) -> int:
    if isinstance(piece, Wire):
        return len(piece.data) + _BYTES_PER_TOKEN * (len(piece.token_ids) + len(piece.prompt_token_ids))
    return len(piece.text) + _BYTES_PER_TOKEN * (1 + len(piece.token_ids))


def _of_tokens(parts: Sequence[Tokens]) -> Answer:
    if parts[-1].finish_reason not in ("stop", "length"):
        raise Incomparable(_UNREADABLE)
    return Answer(
        text="".join(part.text for part in parts),
        token_ids=tuple(token for part in parts for token in part.token_ids),
        finish_reason=parts[-1].finish_reason,
        margins=tuple(margin for part in parts for margin in part.margins),
    )


async def _of_wire(blocks: Sequence[Wire], *, stream: bool) -> Answer:
    reader = AnswerReader(stream=stream)
    try:
        for block in blocks:
            reader.feed(block.data)
            await asyncio.sleep(0)
    except ValueError:  # its message may quote the answer
        raise Incomparable(_UNREADABLE) from None
    return Answer(
        text=reader.text,
        token_ids=tuple(token for block in blocks for token in block.token_ids) or None,
        finish_reason=reader.finish_reason,
        prompt_token_ids=tuple(token for block in blocks for token in block.prompt_token_ids),
    )


class WatchedStream:
    """A stream whose pieces are also collected. Its regular end calls `on_end` with the collector. Otherwise `on_lost`
    is called, with the error that prevents a comparison, or with None if the stream did not reach its end."""

    def __init__(
        self, stream: Stream, *, on_end: Callable[[Collector], None], on_lost: Callable[[Incomparable | None], None]
    ) -> None:
        self._stream = stream
        self._collector: Collector | None = Collector(stream=True)
        self._on_end = on_end
        self._on_lost = on_lost

    @property
    def usage(self) -> Usage:
        return self._stream.usage

    async def next(self) -> Piece | None:
        piece = await self._stream.next()
        collector = self._collector
        if collector is None:
            return piece
        if piece is None:
            self._collector = None
            self._on_end(collector)
            return None
        try:
            collector.add(piece)
        except Incomparable as exc:
            self._lose(exc)
        return piece

    async def aclose(self) -> None:
        self._lose(None)
        await self._stream.aclose()

    def _lose(self, error: Incomparable | None) -> None:
        if self._collector is not None:
            self._collector = None
            self._on_lost(error)


def parting(one: Sequence[object], other: Sequence[object]) -> int | None:
    """The first index at which two sequences differ, None where they are equal."""
    if one == other:
        return None
    return next((at for at, (a, b) in enumerate(zip_longest(one, other)) if a != b), None)


def first_difference(speculative: Answer, plain: Answer) -> Difference | None:
    """The first difference of the answers, None if they are equal. Tokens are compared if both answers have ids,
    otherwise texts. Finish reasons must be equal, too."""
    one: Sequence[object] = speculative.text
    other: Sequence[object] = plain.text
    unit = "character"
    if speculative.token_ids is not None and plain.token_ids is not None:
        one, other, unit = speculative.token_ids, plain.token_ids, "token"
    index = parting(one, other)
    if index is None:
        if speculative.finish_reason == plain.finish_reason and speculative.text == plain.text:
            return None
        index = len(one)
    tells = unit == "token" and index < len(plain.margins)
    return Difference(index=index, unit=unit, margin=plain.margins[index] if tells else None)
