"""Numbers as people read them: on the terminal, on the report page and in the reasons of verdicts. None is a dash: it
was not measured."""

from __future__ import annotations

import math
from collections.abc import Callable

from slipstream_tools.bench.summary import Interval

NONE = "–"


def plain(value: float | None) -> str:
    """Three significant digits."""
    if value is None:
        return NONE
    size = abs(value)
    return _signed(f"{value:.{0 if size >= 100 else 1 if size >= 10 else 2}f}")


def seconds(value: float | None) -> str:
    """Three significant digits in the unit that fits: `85.3 µs`, `4.21 ms`, `1.27 s`."""
    if not value:
        return NONE if value is None else "0 s"
    factor, unit = (1e6, "µs") if abs(value) < 1e-3 else (1e3, "ms") if abs(value) < 1.0 else (1.0, "s")
    return f"{plain(value * factor)} {unit}"


def percent(value: float | None, digits: int = 1) -> str:
    """Never a negative zero."""
    return NONE if value is None else _signed(f"{round(value, digits + 2) + 0.0:.{digits}%}")


def ratio(value: float | None) -> str:
    return NONE if value is None else f"{plain(value)}×"


def money(value: float | None) -> str:
    """Three significant digits, written out: prices per answer are small."""
    if value is None:
        return NONE
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{min(max(digits, 0), 9)}f}"


def count(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def interval(value: Interval | None, form: Callable[[float], str] = plain) -> str:
    """`estimate (low to high)`."""
    return NONE if value is None else f"{form(value.estimate)} ({form(value.low)} to {form(value.high)})"


def _signed(text: str) -> str:
    return text.replace("-", "−", 1)
