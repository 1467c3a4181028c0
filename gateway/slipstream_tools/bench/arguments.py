"""The options of `slipstream bench`, as its command line has them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from slipstream_core.arguments import at_least_one, not_negative, number, seconds

from slipstream_tools.bench.arrivals import Arrivals, parse_arrivals
from slipstream_tools.bench.suites import DTYPES, ENGINES, MODES, SUITES

MAX_CONCURRENCY = 1024
_Add = Callable[..., object]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `slipstream bench`, named as in `BenchOptions`, plus `draft_lengths`."""
    _add_system(parser.add_argument_group("the system").add_argument)
    _add_plan(parser.add_argument_group("the plan").add_argument)
    _add_judgement(parser.add_argument_group("the thresholds").add_argument)


def _add_system(add: _Add) -> None:
    add("--suite", choices=SUITES,
        help="a published comparison: spec-bench (SmolLM2-135M; needs its question.jsonl in --requests) or mixed (the "
        "embedded pair and its workload); sets what is not given: modes plain, speculative:1, :3, :5 and routed; 1, 4, "
        "8 and 16 requests in flight")  # fmt: skip
    add("--engine", choices=ENGINES, help="engine of --suite (slipstream)")
    add("--dtype", choices=DTYPES, help="number format of the weights in --suite's embedded engine (float32)")
    add("-f", "--manifest", type=Path, metavar="FILE", help="start the embedded stack with this manifest")
    add("--url", help="URL of a running gateway; its policy must have allowClientMode: true")
    add("--api-key-env", metavar="NAME", help="environment variable that holds the API key")
    add("--requests", metavar="FILE",
        help="JSONL of OpenAI request bodies, with optional class, reference and check, or of Spec-Bench's questions; "
        "or the shipped workload: embedded:COUNT[:SEED]")  # fmt: skip
    add("--limit", type=at_least_one, metavar="N", help="use only the first N requests")
    add("--model", metavar="NAME", help="model name to send, in place of the one in each request")
    add("--drafts", type=_texts, metavar="LIST",
        help="drafts to compare: ngram, checkpoint folders, embedded:draft or embedded:smollm2-eagle, and for both "
        "kinds at once ngram+FOLDER; the stack restarts for each")  # fmt: skip
    add("--classifier", type=Path, metavar="FILE",
        help="classifier written by 'slipstream train', for the gateway that bench starts")  # fmt: skip
    add("--load-timeout", dest="load_timeout_s", type=seconds, metavar="SECONDS",
        help="time limit for loading a pair (110)")  # fmt: skip


def _add_plan(add: _Add) -> None:
    add("--modes", metavar="LIST",
        help=f"plain, speculative, speculative:N (draft length N), routed ({MODES})")  # fmt: skip
    add("--draft-lengths", type=_counts, metavar="LIST",
        help="draft lengths; each makes the mode speculative a mode of its own")  # fmt: skip
    add("--concurrency", type=_counts, metavar="LIST",
        help="numbers of requests in flight; each is a block of its own (1)")  # fmt: skip
    add("--arrivals", type=_arrivals, metavar="LIST",
        help="open loops, after the blocks of --concurrency: requests per second as a Poisson process, or RATExN in "
        "bursts of N")  # fmt: skip
    add("--rounds", type=at_least_one, metavar="N", help="repetitions of the whole plan (1)")
    add("--warmup", type=not_negative, metavar="N", help="unmeasured requests per mode and block (3)")
    add("--seed", type=not_negative, metavar="N", help="random seed of the order and of the intervals (0)")
    add("--timeout", dest="timeout_s", type=seconds, metavar="SECONDS", help="time limit for one answer (120)")
    add("--out", type=Path, metavar="FOLDER",
        help="folder for the results; the same command continues an interrupted run (slipstream-bench)")  # fmt: skip


def _add_judgement(add: _Add) -> None:
    add("--price", type=_amount, help="price of a GPU-hour, in any currency (the manifest's)")
    add("--price-speculative", type=_amount, help="price of a GPU-hour of the speculative arm (--price)")
    add("--p95-reduction", type=_share, metavar="SHARE", help="minimum p95 reduction (the policy's, 0.2)")
    add("--quality-loss", type=_share, metavar="SHARE", help="maximum decrease of the share of passed checks (0)")
    add("--cost-increase", type=_amount, metavar="SHARE", help="maximum cost increase (0.05)")
    add("--min-samples", type=at_least_one, metavar="N", help="minimum number of requests for a verdict (30)")
    add("--expect", action="append", metavar="WHAT",
        help="exit with 3 unless this holds: not-harmed (routed slows no class down by more than 2 %%), policy (routed "
        "speculates mostly in no class whose verdict is do-not), or CLASS=speculate|do-not|not-enough-data; may be "
        "repeated")  # fmt: skip
    add("--write-policy", type=Path, metavar="FILE", help="write the SpeculationPolicy that follows from the verdicts")
    add("--pair", metavar="NAME", help="name of that policy's ModelPair, with --url (the model's name)")


def _texts(text: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(","))
    if not all(parts) or len(set(parts)) < len(parts):
        raise argparse.ArgumentTypeError(f"expected different names with commas between them, got {text!r}")
    return parts


def _arrivals(text: str) -> tuple[Arrivals, ...]:
    try:
        found = tuple(parse_arrivals(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"expected different arrivals, got {text!r}")
    return found


def _counts(text: str) -> tuple[int, ...]:
    counts = tuple(at_least_one(part.strip()) for part in text.split(","))
    if len(set(counts)) < len(counts) or max(counts) > MAX_CONCURRENCY:
        raise argparse.ArgumentTypeError(f"expected different numbers of 1 to {MAX_CONCURRENCY}, got {text!r}")
    return counts


def _amount(text: str) -> float:
    return number(text, "a number of 0 or more", lambda value: 0 <= value <= 100_000)


def _share(text: str) -> float:
    return number(text, "a share of 0 to 1", lambda value: 0 <= value < 1)
