"""From figures to pixels: linear and logarithmic scales with round ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_FLAT = 1e-9
"""Values that differ by less are one value; a nanosecond is nothing here."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Maps `low`..`high` onto pixels `start`..`end`; what lies outside is drawn at the edge."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self._place(self.low), self._place(self.high)
        share = (self._place(min(max(value, self.low), self.high)) - low) / (high - low)
        return self.start + share * (self.end - self.start)

    def _place(self, value: float) -> float:
        return math.log10(value) if self.log else value


def linear(
    values: Iterable[float], start: float, end: float, *, count: int = 6, zero: bool = True, tight: bool = False
) -> Scale:
    """A scale that holds all finite `values`, and 0 where `zero`; its ends are ticks, or the values' where `tight`."""
    kept = [value for value in values if math.isfinite(value)] + ([0.0] if zero else [])
    low, high = min(kept, default=0.0), max(kept, default=1.0)
    if high - low < max(_FLAT * abs(high), _FLAT):
        low, high = (0.0, 1.0) if zero else (low - 1.0, high + 1.0)
    step = _step((high - low) / count)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(round(index * step, 12) for index in range(first, last + 1))
    if tight:
        inside = tuple(tick for tick in ticks if low <= tick <= high)
        return Scale(low=low, high=high, start=start, end=end, ticks=inside)
    return Scale(low=ticks[0], high=ticks[-1], start=start, end=end, ticks=ticks)


def logarithmic(values: Iterable[float], start: float, end: float, *, pad: float = 1.08) -> Scale:
    """A logarithmic scale over all positive `values`, ticks at 1, 2 and 5, or at decades where there are many."""
    kept = [value for value in values if math.isfinite(value) and value > 0]
    low, high = min(kept, default=0.1) / pad, max(kept, default=1.0) * pad
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 1.2, 1.5, 2, 3, 4, 5, 7), (1, 2, 5), (1, 3), (1,)):
        ticks = tuple(
            float(f"{factor * 10.0**decade:.6g}")
            for decade in decades for factor in factors if low <= factor * 10.0**decade <= high
        )  # fmt: skip
        if len(ticks) <= 7:
            break
    return Scale(low=low, high=high, start=start, end=end, ticks=ticks, log=True)


def spans_decades(values: Iterable[float], factor: float = 12.0) -> bool:
    """Whether positive `values` spread so far that only a logarithmic axis shows them all."""
    kept = [value for value in values if value > 0]
    return bool(kept) and max(kept) / min(kept) > factor


def _step(raw: float) -> float:
    power = 10.0 ** math.floor(math.log10(raw))
    return next(power * step for step in _STEPS if power * step >= raw * (1 - 1e-9))


def most(values: Sequence[float], share: float = 0.01) -> tuple[float, float]:
    """The range of all `values` but a `share` at either end, widened by a tenth: so that one stray value does not
    squeeze all others together. What lies outside is drawn at the edge."""
    ordered = sorted(values)
    drop = int(share * len(ordered))
    low, high = ordered[drop], ordered[-1 - drop]
    return low - (high - low) / 10, high + (high - low) / 10


def spread(places: Sequence[float], gap: float, *, least: float = -math.inf) -> list[float]:
    """Rising `places` moved as little as it takes to stand `gap` apart: what overlaps shares its middle. None is put
    below `least`."""
    blocks: list[tuple[float, int]] = []  # (middle, members)
    for place in places:
        middle, members = place, 1
        while blocks and middle - blocks[-1][0] < gap * (members + blocks[-1][1]) / 2:
            before, count = blocks.pop()
            middle = (before * count + middle * members) / (count + members)
            members += count
        blocks.append((middle, members))
    moved = [middle + gap * (rank - (count - 1) / 2) for middle, count in blocks for rank in range(count)]
    for index, place in enumerate(moved):
        moved[index] = least = max(place, least)
        least += gap
    return moved
