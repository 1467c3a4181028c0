"""The engine's time of each request, from the scheduler to `metrics.speculative_decoding.engine_seconds` of its answer.

A step's time is divided among its requests by their rows: the tokens that the step computes for each, prompt tokens as
well as a token to continue from with its drafts. vLLM does not time the drafter's pass apart, so that it is divided
like the rest of the step. Asynchronous scheduling has two steps in flight: each moment belongs to the older one, so
that the times of all requests add up to the time in which the engine was busy. The rows of a request that has ended
while its next step was in flight are charged to nobody.

vLLM's own counts carry the time from the engine's process to the API server's: `RequestSpecDecodeMetrics` is a
dataclass whose fields are decoded one by one, so that a further field would be dropped. Its histogram has
`num_spec_tokens` + 1 numbers; a further one at its end is the time in microseconds. `to_dict`, which everything that
reads these counts calls, takes it off again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from slipstream_vllm.hooks import wrap

_MICROSECONDS = 1e6


class EngineTime:
    """Seconds of the engine's time, step by step. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._charged_until_s = -math.inf
        self._idle = True

    def now_s(self) -> float:
        """When a step begins."""
        return self._clock()

    def shares(self, rows: Mapping[str, int], *, begun_s: float) -> dict[str, float]:
        """What each request of `rows` is charged for the step that began at `begun_s` and has just ended."""
        since_s = max(begun_s, self._charged_until_s) if self._idle else self._charged_until_s
        self._charged_until_s = now_s = self._clock()
        total = sum(rows.values())
        return {name: (now_s - since_s) * count / total for name, count in rows.items()} if total else {}

    def updated(self, *, idle: bool) -> None:
        """A step's outputs are taken in. `idle`: no request runs, so that nobody is charged until a step begins."""
        self._idle = idle


def timed(counts: Any, engine_s: float) -> Any:
    """A copy of `counts` (`RequestSpecDecodeMetrics`) that carries the time. A copy also because another thread
    serialises it while the next step changes the original."""
    return replace(
        counts,
        histogram=[*counts.histogram, round(engine_s * _MICROSECONDS)],
        per_step_accepted=[*counts.per_step_accepted],
        per_step_drafted=[*counts.per_step_drafted],
    )


def install() -> None:
    """Let vLLM's counts tell the time that they carry."""
    from vllm.v1.metrics.stats import RequestSpecDecodeMetrics

    wrap(RequestSpecDecodeMetrics, "to_dict", _telling)


def _telling(to_dict: Callable[..., Any]) -> Callable[..., Any]:
    def to_dict_with_time(self: Any) -> Any:
        size = self.num_spec_tokens + 1
        if len(self.histogram) <= size:
            return to_dict(self)
        told = to_dict(replace(self, histogram=self.histogram[:size]))
        return {**told, "engine_seconds": self.histogram[size] / _MICROSECONDS}

    return to_dict_with_time
