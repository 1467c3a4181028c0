"""A line chart as SVG: axes with round steps, bands, lines, dots, a legend. Text takes the page's colour."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 720, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 56, 48
_STEPS = 5


class Point(NamedTuple):
    x: float
    y: float


class Series(NamedTuple):
    """What belongs to one name: a line, a band between two lines, dots."""

    name: str
    colour: str
    line: Sequence[Point] = ()
    band: tuple[Sequence[Point], Sequence[Point]] | None = None
    dots: Sequence[Point] = ()

    def points(self) -> Iterable[Point]:
        yield from (*self.line, *self.dots)
        for edge in self.band or ():
            yield from edge


class Chart:
    """`level` draws a line across, `floor` makes the upward axis begin there."""

    def __init__(self, title: str, *, across: str, up: str, level: float = 0.0, floor: float | None = None) -> None:
        self._title, self._across, self._up = title, across, up
        self._level, self._floor = level, floor
        self._series: list[Series] = []

    def add(self, series: Series) -> None:
        self._series.append(series)

    def svg(self) -> str:
        points = [point for series in self._series for point in series.points()]
        ys = [point.y for point in points] + [self._level if self._floor is None else self._floor]
        scale = _Scale(_ticks(0.0, max(point.x for point in points)), _ticks(min(ys), max(ys)))
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
            f' aria-label="{escape(self._title)}" font-family="system-ui, sans-serif" font-size="13">',
            "<style>text{fill:#52525b}.grid{stroke:#a1a1aa;stroke-opacity:.35}.level{stroke:#71717a}"
            "@media (prefers-color-scheme:dark){text{fill:#d4d4d8}}</style>",
            f"<title>{escape(self._title)}</title>",
            f'<text x="{_LEFT}" y="20" font-size="15" font-weight="600">{escape(self._title)}</text>',
            *self._axes(scale),
            *(part for series in self._series for part in _drawn(series, scale)),
            *self._legend(),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def _axes(self, scale: _Scale) -> Iterable[str]:
        for tick in scale.down:
            y = scale.y(tick)
            yield f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>'
            yield f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{tick:g}</text>'
        for tick in scale.along:
            yield f'<text x="{scale.x(tick)}" y="{HEIGHT - _BOTTOM + 18}" text-anchor="middle">{tick:g}</text>'
        if scale.down[0] < self._level < scale.down[-1]:
            y = scale.y(self._level)
            yield f'<line class="level" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}" stroke-width="1.5"/>'
        middle = (_LEFT + WIDTH - _RIGHT) / 2
        yield f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">{escape(self._across)}</text>'
        yield f'<text transform="translate(16 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">{escape(self._up)}</text>'

    def _legend(self) -> Iterable[str]:
        x = float(_LEFT)
        for series in self._series:
            yield f'<rect x="{x:.0f}" y="32" width="12" height="12" rx="2" fill="{series.colour}"/>'
            yield f'<text x="{x + 18:.0f}" y="43">{escape(series.name)}</text>'
            x += 18 + 7.5 * len(series.name) + 20


class _Scale:
    """From values to places."""

    def __init__(self, along: list[float], down: list[float]) -> None:
        self.along, self.down = along, down

    def x(self, value: float) -> float:
        share = (value - self.along[0]) / (self.along[-1] - self.along[0])
        return round(_LEFT + share * (WIDTH - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        share = (value - self.down[0]) / (self.down[-1] - self.down[0])
        return round(HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM), 1)


def _drawn(series: Series, scale: _Scale) -> Iterable[str]:
    if series.band is not None:
        low, high = series.band
        outline = _path([*low, *reversed(high)], scale)
        yield f'<path d="{outline}Z" fill="{series.colour}" fill-opacity=".15"/>'
    if series.line:
        yield f'<path d="{_path(series.line, scale)}" fill="none" stroke="{series.colour}" stroke-width="2"/>'
    for dot in series.dots:
        yield f'<circle cx="{scale.x(dot.x)}" cy="{scale.y(dot.y)}" r="4" fill="{series.colour}"/>'


def _path(points: Sequence[Point], scale: _Scale) -> str:
    return "M" + "L".join(f"{scale.x(point.x)} {scale.y(point.y)}" for point in points)


def _ticks(low: float, high: float) -> list[float]:
    """Round steps from below `low` to above `high`."""
    rough = (high - low) / _STEPS
    magnitude = 10 ** math.floor(math.log10(rough))
    step = next(found * magnitude for found in (1, 2, 5, 10) if found * magnitude >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(index * step, 10) for index in range(first, last + 1)]
