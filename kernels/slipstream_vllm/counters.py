"""Counters from the engine to vLLM's `/metrics`.

Drafts are counted by class, draft length and source, tokens and engine time by class. The scheduler counts each
verified draft where vLLM counts it, so the sums over labels equal vLLM's own `vllm:spec_decode_num_*` counters. The
counts of a step are part of `SchedulerStats`, which vLLM sends to one API server only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from prometheus_client import Counter, Gauge

from slipstream_vllm.classes import UNLABELLED
from slipstream_vllm.hooks import wrap

# `kv_connector_stats` is the only field of SchedulerStats that carries a free dictionary. The wrapper below takes the
# key out before any logger of vLLM reads the field.
COUNTS_KEY = "slipstream"
MAX_CLASSES = 64
OTHER = "other"
COPY, DRAFTER = "copy", "drafter"

DraftRow = tuple[str, int, str, int, int, int]
"""Class, draft length, source (`COPY` or `DRAFTER`), drafts, draft tokens, accepted tokens."""
ClassRow = tuple[str, int, int, float]
"""Class, tokens, steps, engine time in seconds."""


class Counted(NamedTuple):
    """The growth of all counts since the last one."""

    drafts: Sequence[DraftRow]
    classes: Sequence[ClassRow]


@dataclass
class ClassTotals:
    """Counts of a class since the start. `steps` are those that gave a request of the class tokens."""

    requests: int = 0
    tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    engine_s: float = 0.0
    own_length: int | None = None
    """The draft length that the class's latest request set itself, or None."""


class StepCounts:
    """Totals by class, and verified drafts since the last `take`, by class, draft length and source; after 64 classes,
    further ones are `other`."""

    def __init__(self) -> None:
        self.totals: dict[str, ClassTotals] = {}
        self._classes = {UNLABELLED, OTHER}
        self._rows: dict[tuple[str, int, str], tuple[int, int, int]] = {}
        self._taken: dict[str, tuple[int, int, float]] = {}

    def add(self, request_class: str | None, draft_length: int, source: str, drafted: int, accepted: int) -> None:
        totals = self.of(request_class)
        totals.drafted += drafted
        totals.accepted += accepted
        key = (self._label(request_class), draft_length, source)
        drafts, draft_tokens, accepted_tokens = self._rows.get(key, (0, 0, 0))
        self._rows[key] = (drafts + 1, draft_tokens + drafted, accepted_tokens + accepted)

    def of(self, request_class: str | None) -> ClassTotals:
        """The totals of a class."""
        label = self._label(request_class)
        if label not in self.totals:
            self.totals[label] = ClassTotals()
        return self.totals[label]

    def take(self) -> Counted:
        drafts = [(*key, *counts) for key, counts in self._rows.items()]
        self._rows = {}
        now = {label: (totals.tokens, totals.steps, totals.engine_s) for label, totals in self.totals.items()}
        before, self._taken = self._taken, now
        classes: list[ClassRow] = []
        for label, (tokens, steps, engine_s) in now.items():
            had = before.get(label, (0, 0, 0.0))
            if had != now[label]:
                classes.append((label, tokens - had[0], steps - had[1], engine_s - had[2]))
        return Counted(drafts, classes)

    def _label(self, request_class: str | None) -> str:
        if request_class is None or request_class in self._classes:
            return request_class or UNLABELLED
        if len(self._classes) >= MAX_CLASSES:
            return OTHER
        self._classes.add(request_class)
        return request_class


def install() -> None:
    """Connect the counters to vLLM's stat loggers."""
    from vllm.v1.metrics.loggers import StatLoggerManager

    wrap(StatLoggerManager, "record", _counted)


def _counted(record: Callable[..., Any]) -> Callable[..., Any]:
    def record_counts(self: Any, scheduler_stats: Any, *args: Any, **kwargs: Any) -> Any:
        carried = scheduler_stats.kv_connector_stats if scheduler_stats is not None else None
        if carried and COUNTS_KEY in carried:
            observe(Counted(*carried.pop(COUNTS_KEY)))
            scheduler_stats.kv_connector_stats = carried or None
        return record(self, scheduler_stats, *args, **kwargs)

    return record_counts


def observe(counted: Counted) -> None:
    """Add the counts of one step to the counters of this process."""
    for request_class, draft_length, source, *counts in counted.drafts:
        for counter, count in zip(_draft_counters(), counts, strict=True):
            counter.labels(request_class, str(draft_length), source).inc(count)
    tokens, steps, seconds = _class_counters()
    for request_class, token_count, step_count, engine_s in counted.classes:
        tokens.labels(request_class).inc(token_count)
        steps.labels(request_class).inc(step_count)
        seconds.labels(request_class).inc(engine_s)


def observe_limit(limit: int) -> None:
    """Show the server's present limit."""
    _limit_gauge().set(limit)


@cache
def _draft_counters() -> tuple[Counter, Counter, Counter]:
    labels = ("request_class", "draft_length", "source")
    return (
        Counter("slipstream_vllm_drafts", "Drafts that were verified.", labels),
        Counter("slipstream_vllm_draft_tokens", "Draft tokens that were verified.", labels),
        Counter("slipstream_vllm_accepted_tokens", "Draft tokens that were accepted.", labels),
    )


@cache
def _class_counters() -> tuple[Counter, Counter, Counter]:
    labels = ("request_class",)
    return (
        Counter("slipstream_vllm_tokens", "Generated tokens.", labels),
        Counter("slipstream_vllm_steps", "Steps that gave a request tokens.", labels),
        Counter("slipstream_vllm_engine_seconds", "Engine time.", labels),
    )


@cache
def _limit_gauge() -> Gauge:
    return Gauge(
        "slipstream_vllm_draft_limit",
        "Upper bound for the draft length of every request; 0: nothing is drafted.",
        multiprocess_mode="mostrecent",
    )
