"""One whole answer, and the comparison of two."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from itertools import zip_longest

import msgspec
from slipstream_core.errors import Incomparable

from slipstream_gateway.upstreams.base import Piece
from slipstream_gateway.upstreams.openai_answer import AnswerReader

_UNREADABLE = "unreadable"


class WholeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of one choice. Token ids are empty if the server does not return them."""

    text: str
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    prompt_token_ids: tuple[int, ...] = ()

    @property
    def sha256(self) -> str:
        """The hash of the text in UTF-8. A lone half of a surrogate pair counts as a question mark."""
        return hashlib.sha256(self.text.encode(errors="replace")).hexdigest()

    def __len__(self) -> int:
        return len(self.token_ids) or len(self.text)


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first difference of two answers, as the index of a `unit` (`token` or `character`). If all units are equal
    and only the finish reason differs, `index` is the length of both."""

    index: int
    unit: str


async def read_answer(pieces: Sequence[Piece], *, stream: bool) -> WholeAnswer:
    """Parses the pieces of an answer, and yields to other tasks between them. Raises `Incomparable` if the answer is
    cut short, an error, or in an unknown form."""
    if not pieces:
        raise Incomparable(_UNREADABLE)
    reader = AnswerReader(stream=stream)
    try:
        for piece in pieces:
            reader.feed(piece.data)
            await asyncio.sleep(0)
    except ValueError:  # its message may quote the answer
        raise Incomparable(_UNREADABLE) from None
    return WholeAnswer(
        text=reader.text,
        token_ids=tuple(token for piece in pieces for token in piece.token_ids),
        finish_reason=reader.finish_reason,
        prompt_token_ids=tuple(token for piece in pieces for token in piece.prompt_token_ids),
    )


def parting(one: Sequence[object], other: Sequence[object]) -> int | None:
    """The first index at which two sequences differ, None where they are equal."""
    if one == other:
        return None
    return next((at for at, (a, b) in enumerate(zip_longest(one, other)) if a != b), None)


def first_difference(speculative: WholeAnswer, plain: WholeAnswer) -> Difference | None:
    """The first difference of the answers, None if they are equal. Tokens are compared if both answers have ids,
    otherwise texts. Finish reasons must be equal, too."""
    one: Sequence[object] = speculative.text
    other: Sequence[object] = plain.text
    unit = "character"
    if speculative.token_ids and plain.token_ids:
        one, other, unit = speculative.token_ids, plain.token_ids, "token"
    index = parting(one, other)
    if index is None:
        if speculative.finish_reason == plain.finish_reason and speculative.text == plain.text:
            return None
        index = len(one)
    return Difference(index=index, unit=unit)
