"""Both arms for the same prompts as a client of the running system sees them, by class, through gateway and Triton.

Each prompt is streamed twice, once per arm (`x-slipstream-mode`), in alternating order, one at a time and greedily.
TPOT is (last event with text - first) / (output tokens - 1), E2E the time from the request to the stream's end.
"""

from __future__ import annotations

import argparse
from statistics import median, quantiles

import httpx
from slipstream_engine.embedded.workload import STRUCTURED_LONG, Request, workload

from tests.benchmarks.engines import CLASSES
from tests.benchmarks.harness import Interval, Option, Report, benchmark
from tests.benchmarks.systems import Streamed, running_system, stream

MEASURED = ("structured, long", "rare tokens", "one line")
MODES = ("plain", "speculative")
SEED = 31_337


def both(client: httpx.Client, drawn: Request, index: int) -> tuple[Streamed, Streamed]:
    """The plain and the speculative answer; the first one alternates."""
    order = MODES if index % 2 else MODES[::-1]
    seen = {mode: stream(client, drawn.messages, drawn.max_tokens, mode) for mode in order}
    if seen["plain"].text != seen["speculative"].text:
        raise SystemExit(f"prompt {index}: the arms gave different answers; their speed means nothing")
    return seen["plain"], seen["speculative"]


def measure(args: argparse.Namespace, report: Report) -> None:
    with running_system() as system, httpx.Client(base_url=system.gateway_url, timeout=120) as client:
        both(client, next(workload(SEED, 1, STRUCTURED_LONG)), 0)  # opens connections, fills caches
        for name in MEASURED:
            drawn = workload(SEED, args.prompts, CLASSES[name])
            pairs = [both(client, request, index) for index, request in enumerate(drawn)]
            tpot = [plain.tpot_s / speculative.tpot_s for plain, speculative in pairs if speculative.tpot_s > 0]
            low, middle, high = quantiles(tpot, n=4)
            report.row(
                f"{name}: plain ÷ speculative",
                tpot_and_quartiles=Interval(middle, low, high),
                e2e=median(plain.seconds / speculative.seconds for plain, speculative in pairs),
                prompts=args.prompts,
            )


if __name__ == "__main__":
    benchmark(__file__, __doc__, measure, prompts=Option(8, 2, "per class"))
