"""Which draft pays for which text: n-grams, the shipped EAGLE head for SmolLM2, and both; one request at a time, no
gateway.

    python -m tests.benchmarks.draft_sources question.jsonl --dtype bfloat16

The file is Spec-Bench's, or has OpenAI's `messages` with a `class` in each line. Each request is decoded in all ways in
turn, on one thread. Prints plain's time over each way's, after the first token, by class; and the share of accepted
draft tokens. The EAGLE head pays where a few more rows cost little: on a CPU in bfloat16, not in float32.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from slipstream_engine.engine import Engine
from slipstream_engine.loading import load_engine
from slipstream_engine.settings import EngineSettings
from slipstream_engine.types import GenerationRequest, SamplingParams
from slipstream_tools.up.smollm2 import smollm2_folder

_CONTEXT, _ANSWER = 2048, 48


class Way(NamedTuple):
    """`adaptive`: the engine chooses up to `length` draft tokens."""

    draft: str
    length: int
    adaptive: bool = False


WAYS = {
    "plain": Way("ngram", 0),
    "ngram:3": Way("ngram", 3),
    "ngram, chosen": Way("ngram", 6, adaptive=True),
    "eagle:1": Way("eagle", 1),
    "eagle:3": Way("eagle", 3),
    "eagle, chosen": Way("eagle", 6, adaptive=True),
    "hybrid:3": Way("hybrid", 3),
    "hybrid, chosen": Way("hybrid", 6, adaptive=True),
}


class Total(NamedTuple):
    """Decoding time, and draft tokens."""

    seconds: float = 0.0
    drafted: int = 0
    accepted: int = 0

    def plus(self, other: Total) -> Total:
        return Total(self.seconds + other.seconds, self.drafted + other.drafted, self.accepted + other.accepted)


def engines(dtype: str) -> dict[str, Engine]:
    target = str(smollm2_folder(lambda line: print(line, file=sys.stderr)))
    common = {"target": target, "dtype": dtype, "context_tokens": _CONTEXT, "threads": 1}
    head = "embedded:smollm2-eagle"
    kinds = {
        "ngram": {"draft_kind": "ngram"},
        "eagle": {"draft_kind": "model", "draft": head},
        "hybrid": {"draft_kind": "hybrid", "draft": head},
    }
    return {name: load_engine(EngineSettings(**common, **kind)) for name, kind in kinds.items()}  # type: ignore[arg-type]


def requests(file: Path, each: int) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """(class, messages) of every `each`-th line."""
    for line in file.read_text(encoding="utf-8").splitlines()[::each]:
        row = json.loads(line)
        messages = row.get("messages") or [{"role": "user", "content": row["turns"][0]}]
        yield str(row.get("class") or row.get("category")), messages


def decode(engine: Engine, prompt: tuple[int, ...], way: Way) -> Total:
    engine.add(
        GenerationRequest(
            request_id="r",
            prompt_ids=prompt,
            max_tokens=_ANSWER,
            sampling=SamplingParams(temperature=0.0),
            draft_tokens=way.length,
            adaptive=way.adaptive,
        )
    )
    first, counts = None, None
    while engine.busy:
        for chunk in engine.step():
            first, counts = first or time.perf_counter(), chunk.counts
    assert first is not None
    assert counts is not None
    # Of one text each, so that texts of other lengths weigh the same: half precision may end an answer elsewhere.
    seconds = (time.perf_counter() - first) / max(1, counts.output_tokens - 1) * _ANSWER
    return Total(seconds, counts.drafted, counts.accepted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("requests", type=Path)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--each", type=int, default=1, help="take every n-th request")
    args = parser.parse_args()
    by_draft = engines(args.dtype)
    found: defaultdict[str, defaultdict[str, Total]] = defaultdict(lambda: defaultdict(Total))
    for label, messages in requests(args.requests, args.each):
        prompt = by_draft["ngram"].tokenizer.render_chat(messages)
        if len(prompt) + _ANSWER > _CONTEXT:
            continue
        for name, way in WAYS.items():
            total = decode(by_draft[way.draft], prompt, way)
            for row in (label, "all"):
                found[row][name] = found[row][name].plus(total)
    print("class".ljust(18), *(name.rjust(16) for name in WAYS))
    for label, totals in found.items():
        cells = [f"{totals['plain'].seconds / one.seconds:.2f} α {_share(one)}".rjust(16) for one in totals.values()]
        print(label.ljust(18), *cells)


def _share(total: Total) -> str:
    return f"{total.accepted / total.drafted:.2f}" if total.drafted else "–"


if __name__ == "__main__":
    main()
