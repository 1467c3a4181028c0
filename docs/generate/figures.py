"""The pictures of docs/when-it-pays.md as SVG, from what `python -m tests.benchmarks.when_it_pays` measured.

Drawn by hand, in colours that are told apart by colour-blind readers and stand on light and dark pages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from docs.generate.svg import Chart, Point, Series

IMAGES = Path(__file__).resolve().parent.parent / "images"
DATA = IMAGES / "when-it-pays.json"
_COLOURS = ("#2a78d6", "#eb6834", "#8e5bd0", "#1a9e77")  # Okabe and Ito's idea: blue, orange, purple, green


class Measured(NamedTuple):
    """What was measured, by class."""

    classes: dict[str, Any]
    load: list[dict[str, float]]
    draft_tokens: int


def measured() -> Measured:
    found = json.loads(DATA.read_text(encoding="utf-8"))
    return Measured(found["classes"], found["load"], found["draft_tokens"])


def figures() -> dict[str, str]:
    """By file name."""
    found = measured()
    return {
        "saving-by-length.svg": _saving_by_length(found),
        "saving-by-length-short.svg": _saving_by_length(found, most=32),
        "speed-up-by-acceptance.svg": _speed_up_by_acceptance(found),
        "cost-by-load.svg": _cost_by_load(found),
        "tokens-per-step.svg": _tokens_per_step(),
    }


def _saving_by_length(found: Measured, most: int = 10_000) -> str:
    """Medians with their quartiles as bands."""
    chart = Chart(
        "What speculation saves by the answer's length",
        across="tokens of the answer",
        up="CPU ms saved (below 0: lost)",
    )
    for colour, (name, rows) in zip(_COLOURS, found.classes.items(), strict=False):
        shown = [row for row in rows["by_length"] if row["tokens"] <= most]
        chart.add(
            Series(
                name,
                colour,
                line=_points(shown, "median_ms"),
                band=(_points(shown, "low_ms"), _points(shown, "high_ms")),
            )
        )
    return chart.svg()


def _speed_up_by_acceptance(found: Measured) -> str:
    """One dot per answer."""
    title = "How many times as long plain answers take, by acceptance"
    chart = Chart(title, across="acceptance rate α", up="plain ÷ speculative", level=1.0)
    for colour, (name, rows) in zip(_COLOURS, found.classes.items(), strict=False):
        dots = [Point(answer["acceptance"], answer["speed_up"]) for answer in rows["answers"] if answer["tokens"] > 8]
        chart.add(Series(name, colour, dots=dots))
    return chart.svg()


def _cost_by_load(found: Measured) -> str:
    chart = Chart("What a token costs by load", across="requests at once", up="CPU ms per token", floor=0.0)
    for colour, arm in zip(_COLOURS, ("speculative", "plain"), strict=False):
        line = [Point(row["batch"], row[f"{arm}_ms"]) for row in found.load]
        chart.add(Series(arm, colour, line=line, dots=line))
    return chart.svg()


def _tokens_per_step() -> str:
    """The formula, not a measurement: E = (1 - α^(γ+1)) / (1 - α)."""
    chart = Chart("Tokens per step of the target", across="draft length γ", up="tokens per step", floor=0.0)
    for colour, alpha in zip(_COLOURS, (0.9, 0.8, 0.6, 0.3), strict=False):
        line = [Point(gamma, (1 - alpha ** (gamma + 1)) / (1 - alpha)) for gamma in range(9)]
        chart.add(Series(f"α = {alpha}", colour, line=line, dots=line))
    return chart.svg()


def _points(rows: Iterable[dict[str, float]], field: str) -> Sequence[Point]:
    return [Point(row["tokens"], row[field]) for row in rows]
