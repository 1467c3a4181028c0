"""Which draft pays for which text: n-grams, the shipped EAGLE head for SmolLM2, and both.

One request at a time, no gateway. The file is Spec-Bench's, or has OpenAI's `messages` with a `class` in each line.
Each request is decoded in all ways in turn, on one thread. Figures: plain's time over that of each way, after the first
token, by class; and the share of accepted draft tokens. The EAGLE head pays where a few more rows cost little: on a CPU
in bfloat16, not in float32.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from slipstream_engine.engine import Engine
from slipstream_engine.types import GenerationRequest, SamplingParams
from slipstream_tools.up.smollm2 import smollm2_folder

from tests.benchmarks.engines import Answer, decode, embedded_engine
from tests.benchmarks.harness import Option, Report, benchmark

_CONTEXT, _HEAD = 2048, "embedded:smollm2-eagle"
DRAFTS = {
    "ngram": {"draft_kind": "ngram", "draft": None},
    "eagle": {"draft_kind": "model", "draft": _HEAD},
    "hybrid": {"draft_kind": "hybrid", "draft": _HEAD},
}


class Way(NamedTuple):
    """`adaptive`: the engine chooses up to `length` draft tokens."""

    draft: str
    length: int
    adaptive: bool = False


WAYS = {
    "plain": Way("ngram", 0),
    "ngram_3": Way("ngram", 3),
    "ngram_chosen": Way("ngram", 6, adaptive=True),
    "eagle_1": Way("eagle", 1),
    "eagle_3": Way("eagle", 3),
    "eagle_chosen": Way("eagle", 6, adaptive=True),
    "hybrid_3": Way("hybrid", 3),
    "hybrid_chosen": Way("hybrid", 6, adaptive=True),
}


def requests(file: Path | None, each: int) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """(class, messages) of every `each`-th line; one question without a file."""
    if file is None:
        yield "question", [{"role": "user", "content": "Why is the sky blue? Answer in one sentence."}]
        return
    for line in file.read_text(encoding="utf-8").splitlines()[::each]:
        row = json.loads(line)
        messages = row.get("messages") or [{"role": "user", "content": row["turns"][0]}]
        yield str(row.get("class") or row.get("category")), messages


def answer(engine: Engine, prompt: tuple[int, ...], way: Way, tokens: int) -> Answer:
    request = GenerationRequest(
        request_id="r",
        prompt_ids=prompt,
        max_tokens=tokens,
        sampling=SamplingParams(temperature=0.0),
        draft_tokens=way.length,
        adaptive=way.adaptive,
    )
    return decode(engine, [request])[0]


def per_token_s(one: Answer) -> float:
    """Half precision may end an answer elsewhere: texts of other lengths weigh the same."""
    return one.decode_s / max(1, len(one.token_ids) - 1)


def measure(args: argparse.Namespace, report: Report) -> None:
    target = str(smollm2_folder(report.note))
    common = {"target": target, "dtype": args.dtype, "context_tokens": _CONTEXT, "device": "auto"}
    engines = {name: embedded_engine(**common, **kind) for name, kind in DRAFTS.items()}
    found: defaultdict[str, defaultdict[str, list[Answer]]] = defaultdict(lambda: defaultdict(list))
    for label, messages in requests(args.requests, args.each):
        prompt = engines["ngram"].tokenizer.render_chat(messages)
        if len(prompt) + args.tokens > _CONTEXT:
            continue
        for name, way in WAYS.items():
            one = answer(engines[way.draft], prompt, way, args.tokens)
            for row in (label, "all"):
                found[row][name].append(one)
    for label, ways in found.items():
        seconds = {name: sum(map(per_token_s, answers)) for name, answers in ways.items()}
        report.row(f"{label}: plain ÷ way", **{name: seconds["plain"] / some for name, some in seconds.items()})
        report.row(f"{label}: accepted share", **{name: _accepted(answers) for name, answers in ways.items()})


def _accepted(answers: list[Answer]) -> float | None:
    drafted = sum(one.counts.drafted for one in answers)
    return sum(one.counts.accepted for one in answers) / drafted if drafted else None


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        requests=Option(None, None, "Spec-Bench's question.jsonl", kind=Path),
        dtype=Option("float32", "float32", "number format", choices=("float32", "bfloat16")),
        each=Option(1, 1, "take every n-th request"),
        tokens=Option(48, 8, "of an answer"),
    )
