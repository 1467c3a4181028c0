"""What a client of the running system sees: both arms for the same prompts, by class, through gateway and Triton.

    python -m tests.benchmarks.gateway_arms [--prompts 8]

Each prompt is streamed twice, once per arm (`x-slipstream-mode`), in alternating order, one at a time and greedily.
TPOT is (last event with text - first) / (output tokens - 1), E2E the time from the request to the stream's end.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import httpx
from slipstream_engine.embedded.corpus import Task
from slipstream_engine.embedded.workload import ONE_LINE, RARE_TOKENS, STRUCTURED_LONG, Request, workload

from tests.benchmarks.system import MODEL, running_system

CLASSES: Mapping[str, Mapping[Task, float]] = {
    "structured, long": STRUCTURED_LONG,
    "rare tokens": RARE_TOKENS,
    "one line": ONE_LINE,
}
SEED = 31_337


class Seen(NamedTuple):
    """One streamed answer as its client saw it. Times in seconds."""

    tpot_s: float
    e2e_s: float
    text: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=8, help="prompts per class")
    args = parser.parse_args()
    with running_system() as system, httpx.Client(base_url=system.gateway_url, timeout=120) as client:
        for mode in ("plain", "speculative"):  # opens connections, fills caches
            ask(client, next(workload(SEED, 1, STRUCTURED_LONG)), mode)
        print(f"{'class':18} {'TPOT plain/spec':>16} {'quartiles':>13} {'E2E plain/spec':>15}")
        for name, mix in CLASSES.items():
            print(
                row(name, [both(client, drawn, index) for index, drawn in enumerate(workload(SEED, args.prompts, mix))])
            )


def row(name: str, pairs: Sequence[tuple[Seen, Seen]]) -> str:
    """Medians of the ratios prompt by prompt."""
    tpot = [plain.tpot_s / speculative.tpot_s for plain, speculative in pairs if speculative.tpot_s > 0]
    e2e = [plain.e2e_s / speculative.e2e_s for plain, speculative in pairs]
    low, middle, high = statistics.quantiles(tpot, n=4)
    return f"{name:18} {middle:16.2f} {low:6.2f}-{high:<6.2f} {statistics.median(e2e):15.2f}"


def both(client: httpx.Client, drawn: Request, index: int) -> tuple[Seen, Seen]:
    """The plain and the speculative answer; which comes first alternates."""
    order = ("plain", "speculative") if index % 2 else ("speculative", "plain")
    seen = {mode: ask(client, drawn, mode) for mode in order}
    if seen["plain"].text != seen["speculative"].text:
        raise SystemExit(f"prompt {index}: the arms gave different answers; their speed means nothing")
    return seen["plain"], seen["speculative"]


def ask(client: httpx.Client, drawn: Request, mode: str) -> Seen:
    body = {
        "model": MODEL,
        "messages": drawn.messages,
        "max_tokens": drawn.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    start, times, text, tokens = time.perf_counter(), [], "", 0
    with client.stream("POST", "/v1/chat/completions", json=body, headers={"x-slipstream-mode": mode}) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            delta = event["choices"][0]["delta"].get("content") if event["choices"] else None
            if delta:
                times.append(time.perf_counter())
                text += delta
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
    end = time.perf_counter()
    return Seen((times[-1] - times[0]) / max(tokens - 1, 1), end - start, text)


if __name__ == "__main__":
    main()
