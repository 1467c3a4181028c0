"""Sampled answers against plain decoding with the same seed: arms, draft lengths, batches, kills and resumptions.

The embedded pair decodes each request plainly, then again in a random course of events (`tests.engine.seeded_runs`) on
four servers: the draft model, n-grams, both, and none. A request has one difference at most: its tokens after it belong
to another text. In float32 there is none but by rounding; in bfloat16 the rate of differences is the result.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter

from slipstream_engine.embedded.workload import workload
from slipstream_engine.settings import DraftKind, Dtype
from slipstream_engine.step.engine import Engine

from tests.benchmarks.engines import embedded_engine
from tests.benchmarks.harness import Option, Report, benchmark
from tests.engine.seeded_runs import LONGEST_DRAFT, DisturbedRun, first_difference, plain_tokens, sampled_requests

_PROMPTS = 200
_AT_ONCE = 100
_SLOTS = 16
_MAX_TOKENS = 32
_REPORT_EVERY = 1000
_KINDS: tuple[DraftKind, ...] = ("model", "ngram", "hybrid", "none")


def measure(args: argparse.Namespace, report: Report) -> None:
    """Reports the counts so far after every 1,000 requests, and each difference."""
    engines = [_engine(kind, args.dtype) for kind in _KINDS]
    prompts = [engines[0].tokenizer.render_chat(each.messages) for each in workload(args.seed, _PROMPTS)]
    random_ = random.Random(args.seed)
    counts = Counter(requests=0, differing=0, tokens=0, kills=0, resumptions=0, drafted=0, accepted=0)
    while counts["requests"] < args.requests:
        many = min(_AT_ONCE, args.requests - counts["requests"])
        asked = sampled_requests(random_, prompts, many, max_tokens=_MAX_TOKENS)
        plain = plain_tokens(engines[-1], asked)
        found, events = DisturbedRun(random_, engines).tokens(asked)
        counts.update({name: getattr(events, name) for name in ("kills", "resumptions", "drafted", "accepted")})
        for request in asked:
            name = request.request_id
            at = first_difference(found[name], plain[name])
            counts["tokens"] += len(plain[name]) if at is None else at + 1
            if at is not None:
                counts["differing"] += 1
                report.note(f"request {counts['requests'] + int(name)}: token {at} differs; {request.sampling}")
        counts["requests"] += len(asked)
        if counts["requests"] % _REPORT_EVERY == 0 or counts["requests"] == args.requests:
            report.row(args.dtype, **counts, per_10000_tokens=1e4 * counts["differing"] / counts["tokens"])
    report.require(args.dtype != "float32" or not counts["differing"], f"{counts['differing']} answers differ")


def _engine(kind: DraftKind, dtype: Dtype) -> Engine:
    return embedded_engine(
        draft="embedded:draft" if kind in ("model", "hybrid") else None,
        draft_kind=kind,
        max_draft_tokens=LONGEST_DRAFT,
        max_slots=_SLOTS,
        max_waiting=_AT_ONCE,
        dtype=dtype,
    )


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        requests=Option(10_000, 10, "sampled requests"),
        dtype=Option("float32", "float32", "number format", choices=("float32", "bfloat16", "float16")),
        seed=Option(1, 1, "of requests and events"),
    )
