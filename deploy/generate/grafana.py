"""Grafana's JSON from a short description per panel: rows fill up from left to right, 24 columns wide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

Json = dict[str, Any]

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH = 24
_STAT_HEIGHT, _HEIGHT = 4, 8
# One colour per arm, the same on every page.
_COLOURS = {"speculative": "blue", "plain": "orange", "control": "purple"}


class Query(NamedTuple):
    """One PromQL expression. `exemplar` adds the traces behind a histogram's buckets."""

    expression: str
    legend: str = "__auto"
    exemplar: bool = False


class Panel(NamedTuple):
    """A chart, or a single figure if `stat`. `unit` is Grafana's; `red_above` colours a figure that is too high."""

    title: str
    description: str
    queries: tuple[Query, ...]
    unit: str = "short"
    stat: bool = False
    stacked: bool = False
    width: int = 8
    red_above: float | None = None


class Row(NamedTuple):
    """Panels under a heading."""

    title: str
    panels: tuple[Panel, ...]


class Variable(NamedTuple):
    """A selector at the page's top: the values of `label` of the series `of`."""

    name: str
    label: str
    of: str


PAIR = Variable("pair", "Pair", "slipstream_requests_total")
CLASS = Variable("class", "Class", 'slipstream_requests_total{pair=~"$pair"}')


def dashboard(uid: str, title: str, description: str, rows: Sequence[Row], variables: Sequence[Variable] = ()) -> Json:
    """A page in a format that Grafana 10 and later load unchanged."""
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["slipstream"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "timezone": "",
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [
            {
                "title": "Slipstream",
                "type": "dashboards",
                "tags": ["slipstream"],
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "templating": {"list": [_DATASOURCE, *(_variable(variable) for variable in variables)]},
        "annotations": {"list": []},
        "panels": list(_placed(rows)),
    }


def _placed(rows: Sequence[Row]) -> Iterator[Json]:
    number, top = 1, 0
    for row in rows:
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": {"h": 1, "w": _WIDTH, "x": 0, "y": top},
            "panels": [],
        }
        number, top, left, height = number + 1, top + 1, 0, 0
        for panel in row.panels:
            if left + panel.width > _WIDTH:
                top, left, height = top + height, 0, 0
            tall = _STAT_HEIGHT if panel.stat else _HEIGHT
            yield _panel(panel, number, {"h": tall, "w": panel.width, "x": left, "y": top})
            number, left, height = number + 1, left + panel.width, max(height, tall)
        top += height


def _panel(panel: Panel, number: int, place: Json) -> Json:
    return {
        "id": number,
        "type": "stat" if panel.stat else "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides()},
        "options": _stat_options() if panel.stat else _series_options(),
        "targets": [_target(query, index, panel) for index, query in enumerate(panel.queries)],
    }


def _target(query: Query, index: int, panel: Panel) -> Json:
    return {
        "refId": chr(ord("A") + index),
        "datasource": _SOURCE,
        "editorMode": "code",
        "expr": query.expression,
        "legendFormat": query.legend,
        "range": not panel.stat,
        "instant": panel.stat,
        "exemplar": query.exemplar,
    }


def _defaults(panel: Panel) -> Json:
    steps: list[Json] = [{"color": "green", "value": None}]
    if panel.red_above is not None:
        steps.append({"color": "red", "value": panel.red_above})
    defaults: Json = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    if not panel.stat:
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        fill = 40 if panel.stacked else 8
        defaults["custom"] = {"lineWidth": 1, "fillOpacity": fill, "showPoints": "never", "stacking": stacking}
    return defaults


def _overrides() -> list[Json]:
    return [
        {
            "matcher": {"id": "byRegexp", "options": f"(^|.* ){arm}$"},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}],
        }
        for arm, colour in _COLOURS.items()
    ]


def _stat_options() -> Json:
    return {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "area",
        "textMode": "auto",
    }


def _series_options() -> Json:
    return {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


_DATASOURCE: Json = {
    "name": "datasource",
    "label": "Prometheus",
    "type": "datasource",
    "query": "prometheus",
    "hide": 0,
    "current": {},
}


def _variable(variable: Variable) -> Json:
    query = f"label_values({variable.of}, {variable.name})"
    return {
        "name": variable.name,
        "label": variable.label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": variable.name},
        "definition": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "sort": 1,
        "hide": 0,
    }
