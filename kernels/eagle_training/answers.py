"""Collects a target's answers, with the features that an EAGLE head learns from.

    python -m eagle_training.answers --target DIR --prompts FILE.jsonl --out DIR --tokens 0.6

`--prompts` has a JSON object with OpenAI's `messages` in each line; they are taken in a seeded random order. Most
answers are greedy, the others are sampled. The folder gets a file for every 128 answers; the same command goes on where
it was stopped.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from slipstream_engine.draft_training.precision import training_dtype
from slipstream_engine.errors import RequestError
from slipstream_engine.model import Model
from slipstream_engine.step_batch import Span
from slipstream_engine.tokenizer import Tokenizer
from torch import Tensor

_FILE_ANSWERS = 128
_MOST_PROMPT, _MOST_ANSWER = 448, 192
_SAMPLED_SHARE, _TEMPERATURE = 0.25, 0.7


@dataclass
class Answer:
    """A prompt and its answer. `features` are the target's normed hidden states [tokens - 1, hidden]."""

    ids: list[int]
    prompt_tokens: int
    sampled: bool
    parts: list[Tensor]

    @property
    def features(self) -> Tensor:
        return torch.cat(self.parts).to(torch.bfloat16)


class Decoder:
    """Decodes prompts with a target, up to `slots` at once."""

    def __init__(self, target: Model, tokenizer: Tokenizer, slots: int) -> None:
        self._target, self._eos = target, tokenizer.eos_ids
        self._cache = target.new_cache(slots)
        self._running: dict[int, Answer] = {}
        self._free = list(range(slots))

    @torch.inference_mode()
    def answers(self, prompts: Iterator[tuple[list[int], bool]]) -> Iterator[Answer]:
        """The answers to `prompts` (ids, and whether to sample), as they end."""
        exhausted = False
        while self._running or not exhausted:
            while self._free and not exhausted:
                if (prompt := next(prompts, None)) is None:
                    exhausted = True
                    break
                self._start(*prompt)
            yield from self._ended()
            if self._running:
                self._step()

    def _start(self, ids: list[int], sampled: bool) -> None:
        slot = self._free.pop()
        answer = self._running[slot] = Answer(list(ids), len(ids), sampled, [])
        self._append([answer], self._forward([Span(slot, 0, len(ids))], ids), [len(ids)])

    def _step(self) -> None:
        slots = sorted(self._running)
        answers = [self._running[slot] for slot in slots]
        spans = [Span(slot, len(answer.ids) - 1, 1) for slot, answer in zip(slots, answers, strict=True)]
        self._append(answers, self._forward(spans, [answer.ids[-1] for answer in answers]), [1] * len(answers))

    def _forward(self, spans: list[Span], ids: list[int]) -> Tensor:
        target = self._target
        batch = target.layout(spans)
        return target.forward(torch.tensor(ids), batch, self._cache)

    def _append(self, answers: list[Answer], hidden: Tensor, counts: list[int]) -> None:
        features = list(self._target.features(hidden).split(counts))
        ends = torch.tensor(counts).cumsum(0) - 1
        logits = self._target.logits(hidden[ends]).float()
        chosen = logits.argmax(dim=-1)
        if sampled := [index for index, answer in enumerate(answers) if answer.sampled]:
            shares = torch.softmax(logits[sampled] / _TEMPERATURE, dim=-1)
            chosen[sampled] = torch.multinomial(shares, 1).flatten()
        for answer, part, token in zip(answers, features, chosen.tolist(), strict=True):
            answer.parts.append(part.clone())
            answer.ids.append(token)

    def _ended(self) -> Iterator[Answer]:
        for slot, answer in list(self._running.items()):
            if answer.ids[-1] in self._eos or len(answer.ids) - answer.prompt_tokens >= _MOST_ANSWER:
                del self._running[slot]
                self._free.append(slot)
                yield answer


def prompts_of(file: Path, tokenizer: Tokenizer, rng: random.Random) -> Iterator[tuple[list[int], bool]]:
    """The prompts of `file` in random order, without long ones."""
    lines = file.read_text(encoding="utf-8").splitlines()
    rng.shuffle(lines)
    for line in lines:
        try:
            ids = tokenizer.render_chat(json.loads(line)["messages"])
        except RequestError:  # such as a role that the template does not know
            continue
        if len(ids) <= _MOST_PROMPT:
            yield list(ids), rng.random() < _SAMPLED_SHARE


def save(answers: list[Answer], file: Path) -> None:
    """Write `answers` to `file` at once."""
    fresh = file.with_suffix(".part")
    torch.save(
        {
            "ids": [torch.tensor(answer.ids, dtype=torch.int32) for answer in answers],
            "prompt_tokens": [answer.prompt_tokens for answer in answers],
            "features": [answer.features for answer in answers],
        },
        fresh,
    )
    fresh.rename(file)


def main() -> None:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, required=True, help="checkpoint folder of the target")
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines with `messages`")
    parser.add_argument("--out", type=Path, required=True, help="folder of the answers")
    parser.add_argument("--tokens", type=float, default=0.6, help="tokens of all answers, in millions")
    parser.add_argument("--slots", type=int, default=64, help="answers decoded at once")
    parser.add_argument("--seed", type=int, default=17)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    done = sorted(args.out.glob("*.pt"))
    torch.manual_seed(args.seed + len(done))
    rng = random.Random(args.seed)
    # bfloat16 is much faster where the CPU has it, and its answers are as good for training.
    target = Model.load(
        args.target, device=torch.device("cpu"), dtype=training_dtype("cpu"), context_tokens=_MOST_PROMPT + _MOST_ANSWER
    )
    tokenizer = Tokenizer.load(args.target)
    prompts = prompts_of(args.prompts, tokenizer, rng)
    for _ in range(_FILE_ANSWERS * len(done)):
        next(prompts, None)
    started, tokens, number = time.monotonic(), 0, len(done)
    ended = Decoder(target, tokenizer, args.slots).answers(prompts)
    while tokens < args.tokens * 1e6 and (batch := list(itertools.islice(ended, _FILE_ANSWERS))):
        save(batch, args.out / f"{number:04d}.pt")
        number += 1
        tokens += sum(len(answer.ids) - answer.prompt_tokens for answer in batch)
        rate = tokens / (time.monotonic() - started)
        print(f"{number} files, {tokens / 1e6:.3f} M tokens, {rate:.0f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
