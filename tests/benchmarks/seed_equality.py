"""Sampled answers against plain decoding with the same seed: arms, draft lengths, batches, kills and resumptions.

    python -m tests.benchmarks.seed_equality [--requests 10000] [--dtype float32] [--seed 1]

The embedded pair decodes each request plainly, then again in a random course of events (`tests.engine.seeded_runs`) on
four servers: the draft model, n-grams, both, and none. A request has one difference at most: its tokens after it belong
to another text. In float32 there is none but by rounding; in bfloat16 the rate of differences is the result.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence

from slipstream_engine.embedded.workload import workload
from slipstream_engine.engine import Engine
from slipstream_engine.loading import load_engine
from slipstream_engine.settings import DraftKind, Dtype, EngineSettings

from tests.engine.seeded_runs import LONGEST_DRAFT, DisturbedRun, first_difference, plain_tokens, sampled_requests

_PROMPTS = 200
_AT_ONCE = 100
_SLOTS = 16
_MAX_TOKENS = 32
_REPORT_EVERY = 1000
_KINDS: tuple[DraftKind, ...] = ("model", "ngram", "hybrid", "none")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    engines = [_engine(kind, args.dtype) for kind in _KINDS]
    prompts = [engines[0].tokenizer.render_chat(each.messages) for each in workload(args.seed, _PROMPTS)]
    run(engines, prompts, requests=args.requests, seed=args.seed, dtype=args.dtype)


def run(engines: Sequence[Engine], prompts: Sequence[tuple[int, ...]], *, requests: int, seed: int, dtype: str) -> None:
    """Print each difference, and the counts so far after every 1,000 requests."""
    started_s, random_ = time.monotonic(), random.Random(seed)
    differing = tokens = kills = resumptions = drafted = accepted = 0
    done = 0
    while done < requests:
        asked = sampled_requests(random_, prompts, min(_AT_ONCE, requests - done), max_tokens=_MAX_TOKENS)
        plain = plain_tokens(engines[-1], asked)
        found, events = DisturbedRun(random_, engines).tokens(asked)
        kills, resumptions = kills + events.kills, resumptions + events.resumptions
        drafted, accepted = drafted + events.drafted, accepted + events.accepted
        for request in asked:
            name = request.request_id
            at = first_difference(found[name], plain[name])
            tokens += len(plain[name]) if at is None else at + 1
            if at is not None:
                differing += 1
                print(f"request {done + int(name)}: token {at} differs; {request.sampling}", flush=True)
        done += len(asked)
        if done % _REPORT_EVERY and done < requests:
            continue
        print(
            f"{dtype}: {done} requests, {tokens} tokens compared, {differing} requests differ: "
            f"{1e4 * differing / tokens:.2f} per 10,000 tokens"
        )
        print(
            f"draft lengths 0 to {LONGEST_DRAFT}, {kills} kills, {resumptions} resumptions, {drafted} draft tokens, "
            f"{accepted / max(drafted, 1):.3f} accepted, {time.monotonic() - started_s:.0f} s",
            flush=True,
        )


def _engine(kind: DraftKind, dtype: Dtype) -> Engine:
    return load_engine(
        EngineSettings(
            target="embedded:target",
            draft="embedded:draft" if kind in ("model", "hybrid") else None,
            draft_kind=kind,
            max_draft_tokens=LONGEST_DRAFT,
            max_slots=_SLOTS,
            max_waiting=_AT_ONCE,
            dtype=dtype,
            threads=1,
        )
    )


if __name__ == "__main__":
    main()
