"""The engine time of each request, from the scheduler to `metrics.speculative_decoding.engine_seconds` of its answer.

A step's time is divided among its requests by their rows: the tokens that the step computes for each, both prompt
tokens and a decoded token with its drafts. vLLM does not time the drafter's pass separately, so its time is divided in
the same way. Asynchronous scheduling has two steps in flight; each moment is charged to the older step, so the times of
all requests sum to the engine's busy time. Rows of a request that ended while its next step was in flight are charged
to no request.

vLLM's own counts carry the time from the engine's process to the API server. `RequestSpecDecodeMetrics` is a dataclass
whose fields are decoded one by one, so an additional field would be dropped. Its histogram has `num_spec_tokens` + 1
numbers; one more number at its end holds the time in microseconds. `to_dict`, through which all readers of these counts
go, removes it.
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
    """Divides the engine's time among requests, step by step. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._charged_until_s = -math.inf
        self._idle = True

    def now_s(self) -> float:
        """The current time, at the start of a step."""
        return self._clock()

    def step_s(self, *, begun_s: float) -> float:
        """The seconds to charge for the step that started at `begun_s` and ends now."""
        since_s = max(begun_s, self._charged_until_s) if self._idle else self._charged_until_s
        self._charged_until_s = now_s = self._clock()
        return now_s - since_s

    def updated(self, *, idle: bool) -> None:
        """Record the end of a step's update. `idle`: no request runs, so no time is charged until the next step."""
        self._idle = idle


def shares(rows: Mapping[str, int], seconds: float) -> dict[str, float]:
    """The part of a step's `seconds` that each request of `rows` is charged."""
    total = sum(rows.values())
    return {name: seconds * count / total for name, count in rows.items()} if total else {}


def timed(counts: Any, engine_s: float) -> Any:
    """A copy of `counts` (`RequestSpecDecodeMetrics`) with the time. It is a copy because another thread serialises it
    while the next step changes the original."""
    return replace(
        counts,
        histogram=[*counts.histogram, round(engine_s * _MICROSECONDS)],
        per_step_accepted=[*counts.per_step_accepted],
        per_step_drafted=[*counts.per_step_drafted],
    )


def install() -> None:
    """Make `RequestSpecDecodeMetrics.to_dict` return the engine time."""
    from vllm.v1.metrics.stats import RequestSpecDecodeMetrics

    wrap(RequestSpecDecodeMetrics, "to_dict", _with_engine_time)


def _with_engine_time(to_dict: Callable[..., Any]) -> Callable[..., Any]:
    def to_dict_with_time(self: Any) -> Any:
        size = self.num_spec_tokens + 1
        if len(self.histogram) <= size:
            return to_dict(self)
        counts = to_dict(replace(self, histogram=self.histogram[:size]))
        return {**counts, "engine_seconds": self.histogram[size] / _MICROSECONDS}

    return to_dict_with_time
