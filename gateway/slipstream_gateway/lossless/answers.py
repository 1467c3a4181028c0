"""One whole answer, and the comparison of two."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from itertools import zip_longest

import msgspec
from slipstream_core.errors import Incomparable

from slipstream_gateway.upstreams.base import Piece, Tokens, Wire
from slipstream_gateway.upstreams.openai_answer import AnswerReader

_UNREADABLE = "unreadable"


class WholeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of one choice. Token ids are empty if the server does not return them; `margins` is as in `Tokens`."""

    text: str
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    margins: tuple[float, ...] = ()
    prompt_token_ids: tuple[int, ...] = ()

    @property
    def sha256(self) -> str:
        """The hash of the text in UTF-8. A lone half of a surrogate pair counts as a question mark."""
        return hashlib.sha256(self.text.encode(errors="replace")).hexdigest()

    def __len__(self) -> int:
        return len(self.token_ids) or len(self.text)


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first difference of two answers, as the index of a `unit` (`token` or `character`). If all units are equal
    and only the finish reason differs, `index` is the length of both. `margin` is that of the plain answer's token
    there, None if unknown."""

    index: int
    unit: str
    margin: float | None


async def read_answer(pieces: Sequence[Piece], *, stream: bool) -> WholeAnswer:
    """Parses the pieces of an answer, and yields to other tasks between them. Raises `Incomparable` if the answer is
    cut short, an error, or in an unknown form."""
    tokens = [piece for piece in pieces if isinstance(piece, Tokens)]
    wires = [piece for piece in pieces if isinstance(piece, Wire)]
    if not pieces or (tokens and wires):
        raise Incomparable(_UNREADABLE)
    return _of_tokens(tokens) if tokens else await _of_wire(wires, stream=stream)


def _of_tokens(parts: Sequence[Tokens]) -> WholeAnswer:
    if parts[-1].finish_reason not in ("stop", "length"):
        raise Incomparable(_UNREADABLE)
    return WholeAnswer(
        text="".join(part.text for part in parts),
        token_ids=tuple(token for part in parts for token in part.token_ids),
        finish_reason=parts[-1].finish_reason,
        margins=tuple(margin for part in parts for margin in part.margins),
        prompt_token_ids=tuple(token for part in parts for token in part.prompt_token_ids),
    )


async def _of_wire(blocks: Sequence[Wire], *, stream: bool) -> WholeAnswer:
    reader = AnswerReader(stream=stream)
    try:
        for block in blocks:
            reader.feed(block.data)
            await asyncio.sleep(0)
    except ValueError:  # its message may quote the answer
        raise Incomparable(_UNREADABLE) from None
    return WholeAnswer(
        text=reader.text,
        token_ids=tuple(token for block in blocks for token in block.token_ids),
        finish_reason=reader.finish_reason,
        prompt_token_ids=tuple(token for block in blocks for token in block.prompt_token_ids),
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
    has_margin = unit == "token" and index < len(plain.margins)
    return Difference(index=index, unit=unit, margin=plain.margins[index] if has_margin else None)
