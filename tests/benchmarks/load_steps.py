"""How fast the engine's choice of draft tokens follows the load: 1 request in flight, then 16, then 1.

    python -m tests.benchmarks.load_steps question.jsonl [--dtype bfloat16] [--rounds 3]

The engine alone decodes questions of Spec-Bench with SmolLM2-135M-Instruct, greedily. It has seen both loads before.
The size of a step is its number of draft tokens per request, as a mean over five steps. Printed for each phase: the
mean size of its second half, and the number of decoding steps after which the size has first been within a quarter (or
half a token) of that mean. A step that also reads prompts counts as well.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from itertools import count, cycle
from pathlib import Path

from slipstream_engine.engine import Engine
from slipstream_engine.loading import load_engine
from slipstream_engine.settings import EngineSettings
from slipstream_engine.types import GenerationRequest, SamplingParams
from slipstream_tools.up.smollm2 import smollm2_folder

from tests.benchmarks.draft_sources import requests

_CONTEXT, _ANSWER, _MOST = 2048, 64, 6
_WINDOW, _TOLERANCE, _LEAST = 5, 0.25, 0.5


class Load:
    """Keeps a number of requests in flight, and counts the draft tokens per request of each decoding step."""

    def __init__(self, engine: Engine, prompts: Iterator[tuple[int, ...]]) -> None:
        self._engine, self._prompts = engine, prompts
        self._names = count()
        self._drafted: dict[str, tuple[int, int]] = {}  # steps and draft tokens so far, of the requests in flight

    def run(self, in_flight: int, steps: int) -> list[float]:
        """The sizes of `steps` decoding steps with `in_flight` requests; more are cancelled first."""
        for name in list(self._drafted)[in_flight:]:
            self._engine.cancel(name)
            del self._drafted[name]
        sizes: list[float] = []
        while len(sizes) < steps:
            while len(self._drafted) < in_flight:
                self._add()
            drafted = self._step()
            if drafted:
                sizes.append(statistics.fmean(drafted))
        return sizes

    def _add(self) -> None:
        name = str(next(self._names))
        self._drafted[name] = (0, 0)
        self._engine.add(
            GenerationRequest(
                request_id=name,
                prompt_ids=next(self._prompts),
                max_tokens=_ANSWER,
                sampling=SamplingParams(temperature=0.0),
                draft_tokens=_MOST,
                adaptive=True,
            )
        )

    def _step(self) -> list[int]:
        """The draft tokens of each request that decoded in one step."""
        sizes = []
        for chunk in self._engine.step():
            steps, drafted = self._drafted[chunk.request_id]
            if chunk.counts.steps > steps:
                sizes.append(chunk.counts.drafted - drafted)
            self._drafted[chunk.request_id] = (chunk.counts.steps, chunk.counts.drafted)
            if chunk.last:
                del self._drafted[chunk.request_id]
        return sizes


def settled_after(sizes: Sequence[float]) -> tuple[float, int]:
    """The mean size of the second half, and the number of steps before the size is near it for the first time."""
    level = statistics.fmean(sizes[len(sizes) // 2 :])
    allowed = max(_TOLERANCE * level, _LEAST)
    for step in range(len(sizes) - _WINDOW + 1):
        if abs(statistics.fmean(sizes[step : step + _WINDOW]) - level) <= allowed:
            return level, step
    return level, len(sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=Path, metavar="FILE", help="Spec-Bench's question.jsonl")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=120, help="decoding steps of each phase (%(default)s)")
    args = parser.parse_args()
    engine = load_engine(
        EngineSettings(
            target=str(smollm2_folder(print)),
            draft="embedded:smollm2-eagle",
            draft_kind="hybrid",
            device="cpu",
            dtype=args.dtype,
            context_tokens=_CONTEXT,
            max_slots=16,
            max_draft_tokens=_MOST,
            threads=1,
        )
    )
    rendered = (engine.tokenizer.render_chat(messages) for _, messages in requests(args.questions, 1))
    load = Load(engine, cycle([ids for ids in rendered if len(ids) + _ANSWER <= _CONTEXT // 4]))
    for in_flight in (1, 16):
        load.run(in_flight, args.steps)
    for number in range(args.rounds):
        for in_flight in (1, 16, 1):
            level, after = settled_after(load.run(in_flight, args.steps))
            print(f"round {number + 1}, {in_flight:2} in flight: {level:.2f} draft tokens, reached after {after} steps")


if __name__ == "__main__":
    main()
