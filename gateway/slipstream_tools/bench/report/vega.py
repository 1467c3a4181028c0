"""Charts as Vega-Lite specifications, compiled to SVG when the page is written.

Colours are the page's CSS variables, so that one drawing serves light and dark. A datum's `tip` becomes its mark's
`aria-label`, which the page's script shows as a tooltip.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import vl_convert
from markupsafe import Markup

Datum = Mapping[str, Any]
Spec = dict[str, Any]

RATIO = "format(datum.value, '.4~r') + '×'"
COUNT = "format(datum.value, ',.4~r')"
PERCENT = "format(100 * datum.value, '.4~r') + '%'"
MONEY = "replace(format(datum.value, ',.9f'), /\\.?0+$/, '')"
SECONDS = (
    "datum.value == 0 ? '0' : abs(datum.value) < 0.9995e-3 ? format(1e6 * datum.value, '.4~r') + ' µs' : "
    "abs(datum.value) < 0.9995 ? format(1e3 * datum.value, '.4~r') + ' ms' : format(datum.value, ',.4~r') + ' s'"
)
_CONFIG = {
    "background": None,
    "font": "monospace",  # for measuring: the page's own font, which is not known here, is no wider
    "padding": 8,
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--soft)", "titleColor": "var(--soft)", "gridColor": "var(--line)", "labelFontSize": 11.5,
        "titleFontSize": 12, "titleFontWeight": "normal", "titlePadding": 8, "domain": False, "ticks": False,
        "labelOverlap": True,
    },
    "legend": {"labelColor": "var(--soft)", "labelFontSize": 11.5, "labelLimit": 180, "title": None},
    "text": {"fontSize": 12, "color": "var(--ink)"},
}  # fmt: skip
_NAMESPACE = re.compile(r' (?:xmlns(?::\w+)?|version)="[^"]*"')
_GEOMETRY = re.compile(r' (?:d|transform)="[^"]*"')
_DECIMALS = re.compile(r"(\.\d\d)\d+")


def chart(width: float, height: float, *layers: Spec, **encoding: Spec) -> Markup:
    """The drawing of `layers` on shared axes."""
    spec = {"width": width, "height": height, "config": _CONFIG, "encoding": encoding, "layer": layers}
    svg = _NAMESPACE.sub("", vl_convert.vegalite_to_svg(spec), count=3)
    short = _GEOMETRY.sub(lambda found: _DECIMALS.sub(r"\1", found[0]), svg)
    return Markup(short)  # nosec B704  # Vega escapes what is data


def layer(mark: str | Spec, data: Iterable[Datum], *, tips: bool = False, **encoding: Any) -> Spec:
    """One kind of mark. Those with `tips` can be reached by keyboard; others are hidden from assistive technology."""
    shape = {"type": mark} if isinstance(mark, str) else mark
    described = {"description": {"field": "tip", "type": "nominal"}} if tips else {}
    return {"mark": {"aria": tips, **shape}, "data": {"values": list(data)}, "encoding": {**encoding, **described}}


def axis(
    field: str, title: str, unit: str, *, domain: Sequence[float] | None = None, log: bool = False, ticks: int = 5
) -> Spec:
    """A quantitative axis whose labels are in `unit`. Values outside `domain` are drawn at its edge."""
    at = {"values": _log_ticks(*domain)} if domain is not None and log else {"tickCount": ticks}
    scale: Spec = {"clamp": True, "type": "log" if log else "linear"}
    if domain is not None:
        scale |= {"domain": list(domain), "nice": False}
    shown = {"labelExpr": unit, **at}
    return {"field": field, "type": "quantitative", "title": title, "axis": shown, "scale": scale}


def _log_ticks(low: float, high: float) -> list[float]:
    """Round values between `low` and `high`, as close as seven labels allow."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for factors in ((1, 1.2, 1.5, 2, 3, 4, 5, 7), (1, 2, 5), (1, 3), (1,)):
        ticks = [tick for decade in decades for factor in factors if low <= (tick := factor * 10.0**decade) <= high]
        if len(ticks) <= 7:
            break
    return ticks


def rows_axis(names: Sequence[str]) -> Spec:
    """One row per name, in order, from the top."""
    shown = {"grid": True, "tickBand": "extent", "labelColor": "var(--ink)", "labelFontSize": 12.5, "labelLimit": 280,
             "labelOverlap": False}  # fmt: skip
    return {"field": "row", "type": "nominal", "sort": list(names), "title": None, "axis": shown}


def raw(field: str) -> Spec:
    """A channel whose field holds the colour or the dash pattern itself."""
    return {"field": field, "type": "nominal", "scale": None}


def dots(data: Iterable[Datum], size: float = 60, **encoding: Any) -> Spec:
    """Points outlined in `colour` and filled with `fill`, else with `colour`."""
    rows = [{"fill": one["colour"], **one} for one in data]
    return layer(
        {"type": "point", "size": size, "opacity": 1, "strokeWidth": 1.4}, rows, tips=True,
        stroke=raw("colour"), fill=raw("fill"), **encoding,
    )  # fmt: skip


def forest(
    width: float, data: Sequence[Datum], modes: Sequence[str], texts: Mapping[str, str], x: Spec, *layers: Spec
) -> Markup:  # fmt: skip
    """One row per name in `texts`, which stand on the right, and in it one mark per mode; from `low` to `high` a line
    where data have them."""
    y, offset = rows_axis(list(texts)), {"field": "mode", "type": "nominal", "sort": list(modes)}
    beside = [{"row": name, "text": text} for name, text in texts.items()]
    ranges = [one for one in data if "low" in one]
    return chart(
        width, len(texts) * (15 * len(modes) + 8),
        *layers,
        layer({"type": "rule", "strokeWidth": 2.2}, ranges, x={**x, "field": "low"}, x2={"field": "high"}, y=y,
              yOffset=offset, color=raw("colour")),
        dots(data, x=x, y=y, yOffset=offset),
        layer({"type": "text", "align": "left", "color": "var(--soft)"}, beside, y=y, x={"value": width + 8},
              text={"field": "text"}),
    )  # fmt: skip


def heat_map(data: Sequence[Datum], rows: Sequence[str], columns: Sequence[str], title: str) -> Markup:
    """Cells at (`row`, `column`) with their `label`, green above a `value` of 1 and red below it."""
    x = {"field": "column", "type": "ordinal", "sort": list(columns), "title": title, "axis": {"labelAngle": 0}}
    scale = {"type": "log", "domain": [0.5, 1.0, 2.0], "range": ["#d9534f", "#8c8c8c", "#3fa35b"], "clamp": True}
    colour = {"field": "value", "type": "quantitative", "scale": scale, "legend": None}
    text = layer("text", data, text={"field": "label"})
    cells = layer({"type": "rect", "opacity": 0.45}, data, tips=True, color=colour)
    return chart(64.0 * len(columns), 24.0 * len(rows), cells, text, x=x, y=rows_axis(rows))


def bars(
    colour: Callable[[str], str], values: Mapping[str, float], form: Callable[[float], str], tips: Mapping[str, str],
    title: str, unit: str, width: float = 380,
) -> Markup:  # fmt: skip
    """One bar per name, with its value as `form` writes it behind it."""
    data = [
        {"row": name, "value": value, "label": form(value), "colour": colour(name), "tip": f"{name}: {tips[name]}"}
        for name, value in values.items()
    ]
    return chart(
        width, 36 * len(data),
        layer({"type": "bar", "height": {"band": 0.65}, "cornerRadiusEnd": 3}, data, tips=True, color=raw("colour")),
        layer({"type": "text", "align": "left", "dx": 6, "fontWeight": 600}, data, text={"field": "label"}),
        y=rows_axis(list(values)), x=axis("value", title, unit, ticks=4),
    )  # fmt: skip
