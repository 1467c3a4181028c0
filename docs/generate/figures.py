"""The pictures of docs/when-it-pays.md and docs/measurements.md: Vega-Lite charts of what `when_it_pays`, `regret` and
`predicted_saving` of `tests.benchmarks` measured.

Colours can be told apart by colour-blind readers and stand on light and dark pages.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

import vl_convert

IMAGES = Path(__file__).resolve().parent.parent / "images"
DATA = IMAGES / "when-it-pays.json"
REGRET = IMAGES / "regret.json"
PREDICTED_SAVINGS = IMAGES / "predicted-saving.json"
_COLOURS = ("#2a78d6", "#eb6834", "#8e5bd0", "#1a9e77")  # Okabe and Ito's idea: blue, orange, purple, green
_STYLE = (
    "<style>text{fill:#52525b;font-family:system-ui,sans-serif}"
    "@media(prefers-color-scheme:dark){text{fill:#d4d4d8}}</style>"
)
# Places and sizes are fixed, so that the files do not depend on the fonts of the machine that makes them.
_CONFIG: dict[str, Any] = {
    "autosize": "none",
    "background": None,
    "padding": {"left": 64, "right": 136, "top": 44, "bottom": 48},
    "view": {"stroke": None},
    "axis": {"domain": False, "ticks": False, "labelFontSize": 13, "titleFontSize": 13, "titleFontWeight": "normal"},
    "axisX": {"grid": False, "minExtent": 20, "maxExtent": 20, "tickCount": 6, "format": ".4~r"},
    "axisY": {"gridColor": "#a1a1aa", "gridOpacity": 0.35, "minExtent": 32, "maxExtent": 32, "tickCount": 5},
    "legend": {
        "orient": "right",
        "labelFontSize": 13,
        "title": None,
        "symbolStrokeWidth": 3,
        "symbolOpacity": 1,
        "offset": 8,
    },
}
Rows = Sequence[dict[str, Any]]


def figures() -> dict[str, str]:
    """By file name."""
    found = json.loads(DATA.read_text(encoding="utf-8"))
    loads = [
        {"x": row["batch"], "y": row[f"{arm}_ms"], "name": arm}
        for arm in ("speculative", "plain")
        for row in found["load"]
    ]
    answers = [
        {"x": one["acceptance"], "y": one["speed_up"], "name": name}
        for name, rows in found["classes"].items()
        for one in rows["answers"]
        if one["tokens"] > 8
    ]
    acceptance = "How many times as long plain answers take, by acceptance"
    return {
        "saving-by-length.svg": _saving_by_length(found["classes"]),
        "saving-by-length-short.svg": _saving_by_length(found["classes"], most=32),
        "speed-up-by-acceptance.svg": _chart(
            acceptance, "acceptance rate α", "plain ÷ speculative", _rule(1.0), _layer("point", answers)
        ),
        "cost-by-load.svg": _chart(
            "What a token costs by load", "requests at once", "CPU ms per token", _line_with_dots(loads)
        ),
        "tokens-per-step.svg": _tokens_per_step(),
        "time-by-policy.svg": _time_by_policy(json.loads(REGRET.read_text(encoding="utf-8"))),
        "predicted-saving.svg": _predicted_saving(json.loads(PREDICTED_SAVINGS.read_text(encoding="utf-8"))),
    }


def _saving_by_length(classes: dict[str, Any], most: int = 10_000) -> str:
    """Medians with their quartiles as bands."""
    rows = [
        {"x": row["tokens"], "y": row["median_ms"], "low": row["low_ms"], "high": row["high_ms"], "name": name}
        for name, found in classes.items()
        for row in found["by_length"]
        if row["tokens"] <= most
    ]
    band = _layer(
        {"type": "area", "opacity": 0.15}, rows, y={"field": "low", "type": "quantitative"}, y2={"field": "high"}
    )
    title = "What speculation saves by the answer's length"
    return _chart(title, "tokens of the answer", "CPU ms saved (below 0: lost)", _rule(0.0), band, _layer("line", rows))


def _predicted_saving(found: Rows) -> str:
    """As shares of the plain answer's time, because answers differ in length."""
    rows = [
        {
            "x": round(100 * row["predicted_ms"] / row["plain_ms"], 1),
            "y": round(100 * row["measured_ms"] / row["plain_ms"], 1),
            "name": f"{row['load']} in flight",
        }
        for row in found
    ]
    low, high = min(row["x"] for row in rows), max(row["x"] for row in rows)
    exact = _layer({"type": "line", "strokeDash": [4, 4]}, [{"x": low, "y": low}, {"x": high, "y": high}],
                   color={"value": "#71717a"})  # fmt: skip
    title = "Saving of speculation, in percent of the plain answer's time"
    return _chart(title, "predicted", "measured", _rule(0.0), exact, _layer("point", rows))


_POLICIES = {
    "router": "routed lengths",
    "oracle of lengths": "best lengths",
    "router, engine's choice": "engine, routed",
    "engine's choice": "engine's choice",
}


def _time_by_policy(found: Rows) -> str:
    """The mean over the data sets of the warm time, as a share of plain decoding's, by the load's power of two."""
    plain = {(row["data_set"], row["in_flight"]): row["over_lengths"] for row in found if row["policy"] == "plain"}
    shares: dict[tuple[str, int], list[float]] = {}
    for row in found:
        if row["policy"] in _POLICIES and row["in_flight"]:
            share = row["over_lengths"] / plain[row["data_set"], row["in_flight"]]
            shares.setdefault((_POLICIES[row["policy"]], row["in_flight"]), []).append(share)
    rows = [{"x": math.log2(load), "y": round(fmean(some), 3), "name": name} for (name, load), some in shares.items()]
    title = "Time of an answer by policy, plain decoding = 1"
    return _chart(title, "log₂ of the requests in flight", "time ÷ plain", _rule(1.0), _line_with_dots(rows))


def _tokens_per_step() -> str:
    """The formula, not a measurement: E = (1 - α^(γ+1)) / (1 - α)."""
    rows = [
        {"x": gamma, "y": (1 - alpha ** (gamma + 1)) / (1 - alpha), "name": f"α = {alpha}"}
        for alpha in (0.9, 0.8, 0.6, 0.3)
        for gamma in range(9)
    ]
    return _chart("Tokens per step of the target", "draft length γ", "tokens per step", _line_with_dots(rows))


def _chart(title: str, across: str, up: str, *layers: dict[str, Any]) -> str:
    """An SVG whose text takes the page's colour scheme."""
    names = list(dict.fromkeys(row["name"] for layer in layers for row in layer["data"]["values"] if "name" in row))
    colour = {"domain": names, "range": _COLOURS[: len(names)]}
    spec = {
        "title": {"text": title, "anchor": "start", "fontSize": 15, "offset": 12},
        "width": 520,
        "height": 320,
        "config": _CONFIG,
        "layer": layers,
        "encoding": {
            "x": {"field": "x", "type": "quantitative", "title": across, "scale": {"zero": True}},
            "y": {"field": "y", "type": "quantitative", "title": up},
            "color": {"field": "name", "type": "nominal", "scale": colour},
        },
    }
    svg = re.sub(r"(\.\d\d)\d+", r"\1", vl_convert.vegalite_to_svg(spec))
    label = escape(title)
    return svg.replace(">", f' role="img" aria-label="{label}">{_STYLE}<title>{label}</title>', 1) + "\n"


def _layer(mark: str | dict[str, Any], rows: Rows, **encoding: Any) -> dict[str, Any]:
    shape = {"type": mark} if isinstance(mark, str) else mark
    filled = {"filled": True, "size": 50} if mark == "point" else {}
    return {"mark": {**shape, **filled, "aria": False}, "data": {"values": rows}, "encoding": encoding}


def _line_with_dots(rows: Rows) -> dict[str, Any]:
    return _layer({"type": "line", "point": {"size": 50}}, rows)


def _rule(level: float) -> dict[str, Any]:
    """A line across at `level`."""
    drawn = {"x": {"value": 0}, "x2": {"value": "width"}, "color": {"value": "#71717a"}}
    return _layer({"type": "rule", "strokeWidth": 1.5}, [{"y": level}], **drawn)
