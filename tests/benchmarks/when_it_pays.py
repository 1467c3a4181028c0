"""What speculation saves against the answer's length, its acceptance and the load: the data of docs/when-it-pays.md.

The embedded pair on one thread, greedily. Every prompt is answered plainly and speculatively in alternating order, and
both must give the same tokens. Times are the process' CPU seconds, so that other work on the cores stays out of them.
The time at each token of an answer is kept, so that one answer has the figures of all shorter ones.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

from slipstream_engine.embedded.workload import ONE_LINE, STRUCTURED_LONG
from slipstream_engine.step.engine import Engine

from tests.benchmarks.engines import CLASSES, Answer, both_arms, decode, embedded_engine, requests
from tests.benchmarks.harness import Option, Report, benchmark

MEASURED = ("structured, long", "freer notes", "rare tokens", "one line")
DRAFT_TOKENS = 6
LENGTHS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256)
SEED = 20_262


def by_length(pairs: Sequence[tuple[Answer, Answer]]) -> list[dict[str, float]]:
    """The quartiles of the saving at each length that most answers reach."""
    rows = []
    for length in LENGTHS:
        savings_ms = [1e3 * (p.cpu_s[length - 1] - s.cpu_s[length - 1]) for p, s in pairs if len(p.cpu_s) >= length]
        if len(savings_ms) >= max(2, len(pairs) // 2):
            low, middle, high = quantiles(savings_ms, n=4)
            rows.append({"tokens": length, "low_ms": low, "median_ms": middle, "high_ms": high})
    return [{name: round(value, 1) for name, value in row.items()} for row in rows]


def of_answer(plain: Answer, speculative: Answer) -> dict[str, float]:
    counts = speculative.counts
    return {
        "tokens": len(plain.token_ids),
        "acceptance": round(counts.accepted / max(counts.drafted, 1), 3),
        "speed_up": round(plain.cpu_s[-1] / speculative.cpu_s[-1], 3),
    }


def of_load(engine: Engine, batch: int, count: int) -> dict[str, float]:
    """CPU milliseconds per token of the same requests, `batch` at once and all of one arm."""
    spent: dict[str, float] = {"batch": batch}
    for arm, length in (("plain", 0), ("speculative", DRAFT_TOKENS)):
        asked = requests(engine, STRUCTURED_LONG, count, length, seed=SEED)
        batches = [decode(engine, asked[first : first + batch]) for first in range(0, count, batch)]
        seconds = sum(max(answer.cpu_s[-1] for answer in answers) for answers in batches)
        tokens = sum(len(answer.token_ids) for answers in batches for answer in answers)
        spent[f"{arm}_ms"] = round(1e3 * seconds / tokens, 2)
    return spent


def measure(args: argparse.Namespace, report: Report) -> None:
    engine = embedded_engine()
    decode(engine, requests(engine, ONE_LINE, 1, DRAFT_TOKENS, seed=SEED))  # the first step alone pays for some things
    found: dict[str, Any] = {"machine": platform.machine(), "prompts": args.prompts, "draft_tokens": DRAFT_TOKENS}
    found["classes"] = {}
    for name in MEASURED:
        pairs = both_arms(engine, CLASSES[name], args.prompts, DRAFT_TOKENS, seed=SEED)
        answers = [of_answer(plain, speculative) for plain, speculative in pairs]
        found["classes"][name] = {"by_length": by_length(pairs), "answers": answers}
        report.row(name, **{column: fmean(answer[column] for answer in answers) for column in answers[0]})
    found["load"] = [of_load(engine, batch, max(args.batches)) for batch in args.batches]
    for row in found["load"]:
        report.row(f"{row['batch']} at once", plain_ms=row["plain_ms"], speculative_ms=row["speculative_ms"])
    if args.out:
        Path(args.out).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        prompts=Option(6, 2, "per class"),
        batches=Option([1, 2, 4, 8], [1, 2], "requests at once"),
        out=Option("docs/images/when-it-pays.json", "", "the data of the page's figures"),
    )
