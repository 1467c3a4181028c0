"""Prometheus text of several workers as one: the same series are added up, or their mean is taken."""

from __future__ import annotations

from collections.abc import Iterable

# What is no count: a difference with its interval, whose mean over the workers has an interval at most as wide as the
# mean interval; whether a store answers, as the share of the workers that it answers; and what a worker goes by.
_MEANS = ("slipstream_effect_", "slipstream_store_connected", "slipstream_config_")


def merge(texts: Iterable[bytes]) -> bytes:
    """The sum of expositions, series by series, in the order of first appearance.

    Nearly all that the gateway exposes may be added: counters, histogram buckets, sums and counts, and gauges that
    count things. HELP and TYPE lines are kept once.
    """
    families: dict[str, list[str]] = {}
    values: dict[str, dict[str, float]] = {}
    counts: dict[str, int] = {}
    for text in texts:
        family = ""
        for line in text.decode().splitlines():
            if line.startswith("#"):
                family = line.split(" ", 3)[2]
                lines = families.setdefault(family, [])
                if line not in lines:
                    lines.append(line)
            elif line:
                series, _, value = line.rpartition(" ")
                sums = values.setdefault(family, {})
                sums[series] = sums.get(series, 0.0) + float(value)
                counts[series] = counts.get(series, 0) + 1
    for family, sums in values.items():
        if family.startswith(_MEANS):
            values[family] = {series: total / counts[series] for series, total in sums.items()}
    return "".join(_lines(families, values)).encode()


def _lines(families: dict[str, list[str]], values: dict[str, dict[str, float]]) -> Iterable[str]:
    for family, comments in families.items():
        yield from (f"{comment}\n" for comment in comments)
        yield from (f"{series} {value!r}\n" for series, value in values.get(family, {}).items())
