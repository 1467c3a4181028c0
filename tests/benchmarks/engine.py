"""The embedded pair in the engine: the gain of a draft length per class, and of a batch of eight.

Every prompt is answered twice in the same run, plainly and speculatively, in alternating order, one at a time and
greedily, so that both give the same tokens. TPOT is (last token - first token) / (output tokens - 1).
"""

from __future__ import annotations

import argparse
from statistics import quantiles

from slipstream_engine.embedded.workload import STRUCTURED_LONG
from slipstream_engine.step.engine import Engine

from tests.benchmarks.engines import CLASSES, Answer, both_arms, decode, embedded_engine, requests
from tests.benchmarks.harness import Interval, Option, Report, benchmark

SEED = 20_261


def compare_classes(engine: Engine, args: argparse.Namespace, report: Report) -> None:
    """One row per class: plain and speculative TPOT, their ratio with its quartiles, and the counts."""
    for name, mix in CLASSES.items():
        pairs = both_arms(engine, mix, args.prompts, args.draft_tokens, seed=SEED)
        pairs = [pair for pair in pairs if len(pair[0].token_ids) > 1]
        plain_s, speculative_s = (sum(pair[arm].decode_s for pair in pairs) for arm in (0, 1))
        tokens = sum(len(plain.token_ids) - 1 for plain, _ in pairs)
        low, _, high = quantiles([plain.decode_s / speculative.decode_s for plain, speculative in pairs], n=4)
        report.row(
            f"{name}, draft length {args.draft_tokens}",
            tokens=tokens / len(pairs),
            plain_ms=1e3 * plain_s / tokens,
            speculative_ms=1e3 * speculative_s / tokens,
            ratio_and_quartiles=Interval(plain_s / speculative_s, low, high),
            **_counts([speculative for _, speculative in pairs], tokens),
        )


def _counts(answers: list[Answer], tokens: int) -> dict[str, float]:
    drafted, accepted, steps = (
        sum(getattr(answer.counts, name) for answer in answers) for name in ("drafted", "accepted", "steps")
    )
    return {"acceptance": accepted / max(drafted, 1), "tokens_per_step": tokens / steps}


def compare_batch(engine: Engine, args: argparse.Namespace, report: Report) -> None:
    """Tokens/s of eight requests at once over one at a time, the same requests, for both arms."""
    for arm, length in (("plain", 0), ("speculative", args.draft_tokens)):
        asked = requests(engine, STRUCTURED_LONG, args.batch_prompts, length, seed=SEED)
        alone_s = sum(decode(engine, [request])[0].at_s[-1] for request in asked)
        together = decode(engine, asked)
        tokens, together_s = sum(len(answer.token_ids) for answer in together), max(one.at_s[-1] for one in together)
        report.row(
            f"8 requests at once over 1, {arm}",
            tokens_per_s=tokens / together_s,
            alone_tokens_per_s=tokens / alone_s,
            ratio=alone_s / together_s,
        )


def measure(args: argparse.Namespace, report: Report) -> None:
    engine = embedded_engine(threads=args.threads)
    compare_classes(engine, args, report)
    compare_batch(engine, args, report)


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        prompts=Option(12, 2, "per class"),
        batch_prompts=Option(16, 2, "of the comparison of eight requests at once with one"),
        draft_tokens=Option(6, 6, "draft length"),
        threads=Option(1, 1, "of the engine"),
    )
