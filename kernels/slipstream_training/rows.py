"""Rows to train on, and their batches: token ids with a loss weight per token.

Examples are not packed. They are sorted by length and divided into batches of nearly equal length. There is almost no
padding, and every example starts at position 0, like a request.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

SHORT_ANSWER = 8  # shorter answers get the weight of this many tokens; a label has one or two
PROMPT_WEIGHT = 0.1  # prompts teach the language, answers are the task
_ROUND_TO = 32  # keeps the number of distinct lengths small


class Row(NamedTuple):
    """Ids [tokens] i32 of a prompt and its answer, and the number of those of the prompt, at least 1."""

    ids: npt.NDArray[np.int32]
    prompt_tokens: int


class Batch(NamedTuple):
    """`ids` [B, T] int64; `weight` [B, T - 1] float32 is the loss weight of predicting `ids[:, 1:]`. `tokens`: without
    padding. `rows` are those of the batch."""

    ids: Tensor
    weight: Tensor
    tokens: int
    rows: Sequence[Row]


class BatchSource(Protocol):
    """Where a training run gets its batches from."""

    def batches(self, start: int) -> Iterator[tuple[int, Batch]]:
        """Endless stream of (number, batch), always the same, from the batch with the number `start`."""

    def held_out(self) -> Iterator[Batch]:
        """Batches that are not trained on."""


def divided(rows: Sequence[Row], rng: random.Random, *, max_tokens: int) -> list[Sequence[Row]]:
    """Groups of rows of similar length, in random order. Each padded group has at most `max_tokens` tokens, or one
    row."""
    groups: list[list[Row]] = [[]]
    for row in sorted(rows, key=lambda row: len(row.ids)):
        if groups[-1] and (len(groups[-1]) + 1) * len(row.ids) > max_tokens:
            groups.append([])
        groups[-1].append(row)
    rng.shuffle(groups)
    return list(groups)


def collated(rows: Sequence[Row], *, pad_id: int) -> Batch:
    """One batch of `rows`."""
    length = -(-max(len(ids) for ids, _ in rows) // _ROUND_TO) * _ROUND_TO
    ids = torch.full((len(rows), length), pad_id, dtype=torch.int64)
    weight = torch.zeros((len(rows), length - 1))
    for at, (tokens, prompt_tokens) in enumerate(rows):
        ids[at, : len(tokens)] = torch.from_numpy(tokens)
        weight[at, : prompt_tokens - 1] = PROMPT_WEIGHT
        weight[at, prompt_tokens - 1 : len(tokens) - 1] = max(1.0, SHORT_ANSWER / (len(tokens) - prompt_tokens))
    return Batch(ids, weight, sum(len(tokens) for tokens, _ in rows), rows)
