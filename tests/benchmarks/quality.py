"""Checks of held-out answers of the embedded pair, decoded by the engine.

Greedy and speculative, which gives the same answers as plain decoding. Each score is the share of answers, or of
facts in them, that pass the check of that name; α is accepted / drafted tokens as the engine counted them.
"""

from __future__ import annotations

import argparse
from collections import Counter

from slipstream_engine.embedded.corpus import TASKS
from slipstream_engine.embedded.workload import workload

from tests.benchmarks.engines import decode, embedded_engine, requests
from tests.benchmarks.harness import Option, Report, benchmark
from tests.support.answer_checks import check


def measure(args: argparse.Namespace, report: Report) -> None:
    engine = embedded_engine()
    for task in TASKS:
        scores: Counter[str] = Counter()
        asked = requests(engine, {task: 1.0}, args.prompts, args.draft_tokens, seed=args.seed)
        answers = [decode(engine, [request])[0] for request in asked]
        for drawn, answer in zip(workload(args.seed, args.prompts, {task: 1.0}), answers, strict=True):
            scores.update(check(drawn.example, answer.text))
        accepted, drafted = (sum(getattr(one.counts, name) for one in answers) for name in ("accepted", "drafted"))
        report.row(
            task,
            prompts=args.prompts,
            tokens=sum(len(answer.token_ids) for answer in answers) / args.prompts,
            acceptance=accepted / max(drafted, 1),
            **{name: value / args.prompts for name, value in scores.items()},
        )


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        prompts=Option(40, 1, "per task"),
        seed=Option(424_242, 424_242, "of the prompts"),
        draft_tokens=Option(4, 4, "draft length"),
    )
