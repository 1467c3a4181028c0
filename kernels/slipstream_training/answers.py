"""Answers to train on, as JSON lines: `input_ids`, and `loss_mask` with 1 at the tokens of the answer."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import msgspec
import numpy as np
from slipstream_engine.errors import CheckpointError

from slipstream_training.rows import Batch, Row, collated, divided

HELD_OUT_SHARE, MOST_MEASURED = 0.05, 256
MOST_TOKENS = 4096  # of a prompt with its answer: longer ones are cut off: they would need too much memory


class Line(msgspec.Struct):
    """One row as JSON."""

    input_ids: Annotated[list[int], msgspec.Meta(min_length=2)]
    loss_mask: list[int]


class Rows(msgspec.Struct):
    """Rows that fit a target, and the number of others by cause."""

    rows: list[Row]
    left_out: dict[str, int]


def read_rows(lines: Iterable[bytes], *, context_tokens: int, vocabulary: int) -> Rows:
    """The rows of JSON `lines`. A row that exceeds the context is cut off, or left out if nothing of its answer is
    left.

    Raises:
        CheckpointError: a line has another form, or a token id that the target does not have.
    """
    decoder = msgspec.json.Decoder(Line)
    found = Rows([], {})
    for number, line in enumerate(lines, 1):
        try:
            row = _row(decoder.decode(line))
        except (msgspec.MsgspecError, ValueError) as exc:
            raise CheckpointError(f"line {number} of the answers: {exc}") from exc
        highest = int(row.ids.max())
        if highest >= vocabulary:
            raise CheckpointError(
                f"line {number} of the answers has the token id {highest}, and the target has {vocabulary} tokens: "
                "the answers are of another target"
            )
        if row.prompt_tokens >= context_tokens:
            cause = f"with a prompt of {context_tokens} tokens or more"
            found.left_out[cause] = found.left_out.get(cause, 0) + 1
        else:
            found.rows.append(row._replace(ids=row.ids[:context_tokens]))
    return found


def _row(line: Line) -> Row:
    prompt = len(line.loss_mask) - sum(line.loss_mask)
    if line.loss_mask != [0] * prompt + [1] * (len(line.input_ids) - prompt):
        raise ValueError("loss_mask is not 0 for each token of the prompt, then 1 for each token of the answer")
    if not 0 < prompt < len(line.input_ids):
        raise ValueError("the prompt or the answer has no tokens")
    return Row(np.array(line.input_ids, dtype=np.int32), prompt)


def _rank(row: Row, seed: int) -> float:
    """A number from 0 to 1, uniform over the rows. It is that of the row itself: also with more or fewer other rows, a
    later run trains on none that was held out before."""
    digest = hashlib.blake2b(row.ids.tobytes(), digest_size=8, key=str(seed).encode()).digest()
    return int.from_bytes(digest) / 2**64


class Answers:
    """A `BatchSource` of rows, one pass after the other, each in another order. A share of the rows is held out, of
    which the first `MOST_MEASURED` are measured on."""

    def __init__(self, rows: Sequence[Row], *, seed: int, max_tokens: int, pad_id: int) -> None:
        ranks = [_rank(row, seed) for row in rows]
        limit = max(HELD_OUT_SHARE, min(ranks))  # at least one
        self.trained = [row for row, rank in zip(rows, ranks, strict=True) if rank > limit]
        self.unseen = [row for row, rank in zip(rows, ranks, strict=True) if rank <= limit][:MOST_MEASURED]
        self._seed, self._max_tokens, self._pad_id = seed, max_tokens, pad_id

    @property
    def tokens(self) -> int:
        """The number of tokens of one pass."""
        return sum(len(row.ids) for row in self.trained)

    def batches(self, start: int) -> Iterator[tuple[int, Batch]]:
        number = turn = 0
        while True:
            rng = random.Random(f"{self._seed}/{turn}")
            for group in divided(rng.sample(self.trained, len(self.trained)), rng, max_tokens=self._max_tokens):
                if number >= start:
                    yield number, collated(group, pad_id=self._pad_id)
                number += 1
            turn += 1

    def held_out(self) -> Iterator[Batch]:
        for group in divided(self.unseen, random.Random(self._seed), max_tokens=self._max_tokens):
            yield collated(group, pad_id=self._pad_id)
