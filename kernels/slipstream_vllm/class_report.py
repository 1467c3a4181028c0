"""The counts of classes in `GET /slipstream/classes`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_COUNTS = ("requests", "tokens", "steps", "drafted", "accepted", "engine_s")

ByClass = Mapping[str, Mapping[str, Any]]


def by_class(ranks: Sequence[ByClass]) -> dict[str, dict[str, Any]]:
    """Counts and shares of each class over all data-parallel `ranks`. Ranks judge thresholds for themselves: the
    smallest present length is shown. A share of nothing is None."""
    total_s = sum(entry["engine_s"] for rank in ranks for entry in rank.values())
    labels = sorted({label for rank in ranks for label in rank})
    return {label: _summary([rank[label] for rank in ranks if label in rank], total_s) for label in labels}


def _summary(entries: Sequence[Mapping[str, Any]], total_s: float) -> dict[str, Any]:
    counts = {name: sum(entry[name] for entry in entries) for name in _COUNTS}
    shortest = min(entries, key=lambda entry: entry["length"])
    return {
        "requests": counts["requests"],
        "tokens": counts["tokens"],
        "drafted": counts["drafted"],
        "accepted": counts["accepted"],
        "acceptance": _share(counts["accepted"], counts["drafted"]),
        "tokens_per_step": _share(counts["tokens"], counts["steps"]),
        "engine_seconds": counts["engine_s"],
        "engine_time_share": _share(counts["engine_s"], total_s),
        "length": shortest["length"],
        "origin": shortest["origin"],
    }


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
