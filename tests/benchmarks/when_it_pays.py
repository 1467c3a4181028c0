"""What speculation saves against the answer's length, its acceptance and the load: the data of docs/when-it-pays.md.

    python -m tests.benchmarks.when_it_pays [--prompts 6] [--out docs/images/when-it-pays.json]

The embedded pair on one thread, greedily. Every prompt is answered plainly and speculatively in alternating order, and
both must give the same tokens. Times are the process' CPU seconds, so that other work on the cores stays out of them;
after each token of an answer the time so far is kept, and so one answer tells of all shorter ones.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from slipstream_engine.embedded.corpus import Task
from slipstream_engine.embedded.workload import ONE_LINE, RARE_TOKENS, STRUCTURED_LONG, workload
from slipstream_engine.engine import Engine
from slipstream_engine.loading import load_engine
from slipstream_engine.settings import EngineSettings
from slipstream_engine.types import Counts, GenerationRequest, SamplingParams

CLASSES: Mapping[str, Mapping[Task, float]] = {
    "structured, long": STRUCTURED_LONG,
    "freer notes": {"notes": 1.0},
    "rare tokens": RARE_TOKENS,
    "one line": ONE_LINE,
}
DRAFT_TOKENS = 6
LENGTHS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256)
BATCHES = (1, 2, 4, 8)
SEED = 20_262
_NOTHING = Counts(prompt_tokens=0, output_tokens=0)


class Timed(NamedTuple):
    """An answer, with the CPU seconds that had gone by at each of its tokens."""

    token_ids: list[int]
    at_s: list[float]
    counts: Counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=6, help="prompts per class")
    parser.add_argument("--out", type=Path, default=Path("docs/images/when-it-pays.json"))
    args = parser.parse_args()
    engine = load_engine(
        EngineSettings(target="embedded:target", draft="embedded:draft", draft_kind="model", device="cpu", threads=1)
    )
    _run(engine, _requests(engine, ONE_LINE, 1, DRAFT_TOKENS))  # what the first step alone pays for
    found: dict[str, Any] = {
        "machine": platform.machine(),
        "prompts": args.prompts,
        "draft_tokens": DRAFT_TOKENS,
        "classes": {name: measure_class(engine, mix, args.prompts) for name, mix in CLASSES.items()},
    }
    args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    found["load"] = [measure_load(engine, batch) for batch in BATCHES]
    args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def measure_class(engine: Engine, mix: Mapping[Task, float], prompts: int) -> dict[str, Any]:
    """Savings by length over the answers that are as long, and each answer's acceptance and saving."""
    pairs = []
    for index in range(prompts):
        order = (0, DRAFT_TOKENS) if index % 2 else (DRAFT_TOKENS, 0)
        answers = {length: _run(engine, [_requests(engine, mix, prompts, length)[index]])[0] for length in order}
        plain, speculative = answers[0], answers[DRAFT_TOKENS]
        if plain.token_ids != speculative.token_ids:
            raise SystemExit(f"prompt {index}: speculation changed the answer; its speed means nothing")
        pairs.append((plain, speculative))
        print(f"{len(plain.token_ids):4} tokens, {plain.at_s[-1] / speculative.at_s[-1]:.2f} times", flush=True)
    return {"by_length": _by_length(pairs), "answers": [_answer(plain, spec) for plain, spec in pairs]}


def _by_length(pairs: Sequence[tuple[Timed, Timed]]) -> list[dict[str, float]]:
    rows = []
    for length in LENGTHS:
        savings_ms = [1e3 * (p.at_s[length - 1] - s.at_s[length - 1]) for p, s in pairs if len(p.at_s) >= length]
        if len(savings_ms) >= max(2, len(pairs) // 2):
            low, middle, high = statistics.quantiles(savings_ms, n=4)
            rows.append({"tokens": length, "low_ms": low, "median_ms": middle, "high_ms": high})
    return [{name: round(value, 1) for name, value in row.items()} for row in rows]


def _answer(plain: Timed, speculative: Timed) -> dict[str, float]:
    counts = speculative.counts
    return {
        "tokens": len(plain.token_ids),
        "acceptance": round(counts.accepted / max(counts.drafted, 1), 3),
        "speed_up": round(plain.at_s[-1] / speculative.at_s[-1], 3),
    }


def measure_load(engine: Engine, batch: int) -> dict[str, float]:
    """CPU milliseconds per token of the same requests, `batch` at once and all of one arm."""
    spent: dict[str, float] = {"batch": batch}
    for arm, length in (("plain", 0), ("speculative", DRAFT_TOKENS)):
        requests = _requests(engine, STRUCTURED_LONG, BATCHES[-1], length)
        start_s, tokens = time.process_time(), 0
        for first in range(0, len(requests), batch):
            tokens += sum(len(answer.token_ids) for answer in _run(engine, requests[first : first + batch]))
        spent[f"{arm}_ms"] = round(1e3 * (time.process_time() - start_s) / tokens, 2)
    print(spent, flush=True)
    return spent


def _requests(engine: Engine, mix: Mapping[Task, float], prompts: int, draft_tokens: int) -> list[GenerationRequest]:
    return [
        GenerationRequest(
            request_id=str(index),
            prompt_ids=engine.tokenizer.render_chat(drawn.messages),
            max_tokens=drawn.max_tokens,
            sampling=SamplingParams(temperature=0.0),
            draft_tokens=draft_tokens,
        )
        for index, drawn in enumerate(workload(SEED, prompts, mix))
    ]


def _run(engine: Engine, requests: Sequence[GenerationRequest]) -> list[Timed]:
    """Decodes `requests` together, to their ends."""
    made: dict[str, Timed] = {request.request_id: Timed([], [], _NOTHING) for request in requests}
    start_s = time.process_time()
    for request in requests:
        engine.add(request)
    while engine.busy:
        for chunk in engine.step():
            answer = made[chunk.request_id]
            answer.token_ids.extend(chunk.token_ids)
            answer.at_s.extend([time.process_time() - start_s] * len(chunk.token_ids))
            made[chunk.request_id] = answer._replace(counts=chunk.counts)
    return [made[request.request_id] for request in requests]


if __name__ == "__main__":
    main()
