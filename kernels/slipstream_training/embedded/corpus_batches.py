"""Training batches of corpus examples: token ids and a loss weight per token."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping

import numpy as np
from slipstream_engine.embedded.corpus import DEFAULT_MIX, Example, Split, Task, example
from tokenizers import Tokenizer

from slipstream_training.embedded.train_tokenizer import ASSISTANT, END, PAD, token_id
from slipstream_training.rows import Batch, Row, collated, divided

_POOL = 512
_HELD_OUT_BATCHES = 12


def render_prompt(example: Example) -> str:
    """The messages rendered by the chat template, with the generation prompt."""
    turns = "".join(f"<|{message.role}|>{message.content.strip()}{END}" for message in example.messages)
    return turns + ASSISTANT


def encode(tokenizer: Tokenizer, prompt: str, answer: str) -> Row:
    """The ids of a prompt and its answer, with the end token."""
    ids = tokenizer.encode(prompt).ids
    return Row(np.array(ids + tokenizer.encode(answer + END).ids, dtype=np.int32), len(ids))


class Corpus:
    """A `BatchSource` of corpus examples. Batches have at most `max_tokens` tokens with their padding.

    Resuming generates the examples again, which takes seconds.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, seed: int, max_tokens: int, mix: Mapping[Task, float] = DEFAULT_MIX
    ) -> None:
        self._tokenizer, self._seed, self._max_tokens, self._mix = tokenizer, seed, max_tokens, mix

    def batches(self, start: int) -> Iterator[tuple[int, Batch]]:
        return self._stream("train", start, self._mix)

    def held_out(self) -> Iterator[Batch]:
        stream = self._stream("held_out", 0, DEFAULT_MIX)
        return (batch for _, batch in itertools.islice(stream, _HELD_OUT_BATCHES))

    def _stream(self, split: Split, start: int, mix: Mapping[Task, float]) -> Iterator[tuple[int, Batch]]:
        number = pool = 0
        while True:
            rng = random.Random(f"{split}/{self._seed}/pool/{pool}")
            indices = range(pool * _POOL, (pool + 1) * _POOL)
            drawn = [example(self._seed, index, split, mix) for index in indices]
            rows = [encode(self._tokenizer, render_prompt(one), one.answer) for one in drawn]
            for group in divided(rows, rng, max_tokens=self._max_tokens):
                if number >= start:
                    yield number, collated(group, pad_id=token_id(self._tokenizer, PAD))
                number += 1
            pool += 1
