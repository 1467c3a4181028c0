"""A copy of an answer while it is sent to its client."""

from __future__ import annotations

from slipstream_gateway.upstreams.base import Piece

MAX_ANSWER_BYTES = 1024 * 1024
_COUNTED_AT_ONCE = 256


class AnswerCopy:
    """The pieces of one answer with one choice. If the answer exceeds `MAX_ANSWER_BYTES`, none are kept.

    The sizes of `_COUNTED_AT_ONCE` pieces are added at once: adding each by itself cost more than keeping the piece.
    """

    __slots__ = ("_counted", "_size_bytes", "pieces")

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self._counted = 0
        self._size_bytes = 0

    def add(self, piece: Piece) -> None:
        """Must cost next to nothing, because it runs for each chunk of each stream."""
        pieces = self.pieces
        pieces.append(piece)
        if len(pieces) - self._counted >= _COUNTED_AT_ONCE:
            self._count()

    def size_bytes(self) -> int:
        """The size of the pieces so far, without their token ids."""
        self._count()
        return self._size_bytes

    def _count(self) -> None:
        new = self.pieces[self._counted :]
        self._size_bytes += sum([len(piece.data) for piece in new])
        if self._size_bytes > MAX_ANSWER_BYTES:
            self.pieces.clear()
        self._counted = len(self.pieces)
