"""Training batches of corpus examples: token ids and a loss weight per token.

Examples are not packed. A pool of examples is sorted by length and divided into micro-batches of nearly equal length.
There is almost no padding, and every example starts at position 0, like a request.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from slipstream_engine.embedded.corpus import DEFAULT_MIX, Example, Split, Task, example
from tokenizers import Tokenizer
from torch import Tensor

from embedded_training.train_tokenizer import ASSISTANT, END, PAD, token_id

SHORT_ANSWER = 8  # shorter answers get the weight of this many tokens; a label has one or two
PROMPT_WEIGHT = 0.1  # prompts teach the language, answers are the task
_POOL = 512
Row = tuple[list[int], int]  # ids of prompt and answer, length of the prompt
_ROUND_TO = 32  # keeps the number of distinct lengths small


@dataclass(frozen=True, kw_only=True)
class Batch:
    """`ids` [B, T] int64; `weight` [B, T - 1] float32 is the loss weight of predicting `ids[:, 1:]`."""

    ids: Tensor
    weight: Tensor
    tokens: int


def render_prompt(example: Example) -> str:
    """The messages rendered by the chat template, with the generation prompt."""
    turns = "".join(f"<|{message.role}|>{message.content.strip()}{END}" for message in example.messages)
    return turns + ASSISTANT


def encode(tokenizer: Tokenizer, example: Example) -> Row:
    """(ids of prompt and answer with the end token, length of the prompt)"""
    prompt = tokenizer.encode(render_prompt(example)).ids
    return prompt + tokenizer.encode(example.answer + END).ids, len(prompt)


def batches(
    tokenizer: Tokenizer,
    *,
    seed: int,
    max_tokens: int,
    start: int = 0,
    split: Split = "train",
    mix: Mapping[Task, float] = DEFAULT_MIX,
) -> Iterator[tuple[int, Batch]]:
    """Infinite stream of (number, batch). `start` resumes it at the batch with that number.

    `max_tokens` limits B * T. Resuming generates the pools again, which takes seconds.
    """
    number = 0
    pool = 0
    while True:
        rng = random.Random(f"{split}/{seed}/pool/{pool}")
        indices = range(pool * _POOL, (pool + 1) * _POOL)
        rows = [encode(tokenizer, example(seed, index, split, mix)) for index in indices]
        for group in _cut(rows, rng, max_tokens=max_tokens):
            if number >= start:
                yield number, _collate(group, pad_id=token_id(tokenizer, PAD))
            number += 1
        pool += 1


def _cut(rows: list[Row], rng: random.Random, *, max_tokens: int) -> list[list[Row]]:
    """Groups of rows of similar length, in random order. Each padded group has at most `max_tokens` tokens."""
    rows.sort(key=lambda row: len(row[0]))
    groups: list[list[Row]] = [[]]
    for row in rows:
        if groups[-1] and (len(groups[-1]) + 1) * len(row[0]) > max_tokens:
            groups.append([])
        groups[-1].append(row)
    rng.shuffle(groups)
    return groups


def _collate(rows: list[Row], *, pad_id: int) -> Batch:
    length = -(-max(len(ids) for ids, _ in rows) // _ROUND_TO) * _ROUND_TO
    ids = torch.full((len(rows), length), pad_id, dtype=torch.int64)
    weight = torch.zeros((len(rows), length - 1))
    for row, (tokens, prompt_length) in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        weight[row, : prompt_length - 1] = PROMPT_WEIGHT
        weight[row, prompt_length - 1 : len(tokens) - 1] = max(1.0, SHORT_ANSWER / (len(tokens) - prompt_length))
    return Batch(ids=ids, weight=weight, tokens=sum(len(tokens) for tokens, _ in rows))
