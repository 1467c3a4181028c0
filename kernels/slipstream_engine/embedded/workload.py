"""Held-out chat requests for benchmarks and tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .corpus import DEFAULT_MIX, Example, Task, example

# Above the longest answer of each task, so that no answer is cut off.
MAX_TOKENS: Mapping[Task, int] = {
    "summary": 320, "json": 240, "reply": 220, "sql": 96, "python": 128,
    "status": 48, "label": 8, "extraction": 240, "notes": 160,
    "repeat": 240,
}  # fmt: skip
# The classes that benchmarks compare: long and predictable, one line, many rare tokens.
STRUCTURED_LONG: Mapping[Task, float] = {"summary": 0.5, "json": 0.25, "reply": 0.25}
ONE_LINE: Mapping[Task, float] = {"status": 0.7, "label": 0.3}
RARE_TOKENS: Mapping[Task, float] = {"extraction": 1.0}


@dataclass(frozen=True, kw_only=True)
class Request:
    """One chat request; `example` holds the facts to check its answer against."""

    messages: list[dict[str, str]]
    task: Task
    max_tokens: int
    example: Example


def workload(seed: int, n: int, mix: Mapping[Task, float] | None = None) -> Iterator[Request]:
    """Yield `n` held-out requests; `mix` gives the shares of tasks (default: those of the corpus)."""
    for index in range(n):
        drawn = example(seed, index, "held_out", DEFAULT_MIX if mix is None else mix)
        yield Request(messages=drawn.chat(), task=drawn.task, max_tokens=MAX_TOKENS[drawn.task], example=drawn)
