"""Figures as people read them. None is a dash: it was not measured."""

from __future__ import annotations

import math
from collections.abc import Callable

from slipstream_tools.bench.summary import Interval

NONE = "–"
MINUS = "−"


def seconds(value: float | None) -> str:
    """Three significant digits in the unit that fits: `85.3 µs`, `4.21 ms`, `1.27 s`."""
    if value is None:
        return NONE
    size = abs(value)
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (float("inf"), 1.0, "s")):
        if size < limit:
            return f"{_digits(value * factor)} {unit}" if size else "0 s"
    return NONE


def tick_seconds(value: float) -> str:
    """An axis label: no more digits than needed."""
    if value == 0:
        return "0"
    size = abs(value)
    factor, unit = (1e6, "µs") if size < 0.9995e-3 else (1e3, "ms") if size < 0.9995 else (1.0, "s")
    return f"{_signed(f'{value * factor:.4g}')} {unit}"


def percent(value: float | None, digits: int = 1) -> str:
    return NONE if value is None else f"{_signed(f'{100 * value:.{digits}f}')} %"


def tick_percent(value: float) -> str:
    return f"{_signed(f'{100 * value:.4g}')} %"


def ratio(value: float | None) -> str:
    return NONE if value is None else f"{_digits(value)}×"


def tick_ratio(value: float) -> str:
    return f"{value:.4g}×"


def plain(value: float | None) -> str:
    return NONE if value is None else _digits(value)


def tick_plain(value: float) -> str:
    return _signed(f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}")


def money(value: float | None) -> str:
    """Three significant digits, written out: prices per answer are small."""
    if value is None:
        return NONE
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{min(max(digits, 0), 9)}f}"


def tick_money(value: float) -> str:
    return f"{value:.9f}".rstrip("0").rstrip(".")


def interval(value: Interval | None, form: Callable[[float], str] = plain) -> str:
    """`estimate (low to high)`."""
    if value is None:
        return NONE
    return f"{form(value.estimate)} ({form(value.low)} to {form(value.high)})"


def _digits(value: float) -> str:
    size = abs(value)
    return _signed(f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}")


def _signed(text: str) -> str:
    return text.replace("-", MINUS, 1) if text.startswith("-") else text
