"""Merges the expositions of several workers: equal series are added, or their mean or maximum is taken.

Reads Prometheus' text format and OpenMetrics 1.0; of several exemplars of a bucket, the first is kept. The multiprocess
mode of prometheus_client is no alternative: it has neither exemplars nor instruments that are read at a scrape.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

# Values that are no counts. The mean of differences over the workers has an interval at most as wide as the mean
# interval; the mean of 0 and 1 is a share of the workers.
MEANS: tuple[str, ...] = (
    "slipstream_effect_",
    "slipstream_store_connected",
    "slipstream_config_",
    "slipstream_access_keys",
    "slipstream_limits_shared",
    "slipstream_engine_conformance",
)
# Values of which the worst worker counts.
MAXIMA: tuple[str, ...] = (
    "slipstream_admission_pressure",
    "slipstream_admission_latency_ratio",
    "slipstream_parity_evidence",
)

_EOF = "# EOF"
_SAMPLE = re.compile(r'([^\s{]+(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?) (\S+)(?: (# \{.*))?')


class _Family:
    """The comments of one metric, and the workers' values by series."""

    def __init__(self) -> None:
        self.comments: list[str] = []
        self.values: dict[str, list[float]] = {}
        self.exemplars: dict[str, str] = {}

    def take(self, line: str) -> None:
        found = _SAMPLE.fullmatch(line)
        if found is None:
            raise ValueError(f"not a sample: {line}")
        series, value, exemplar = found.groups()
        self.values.setdefault(series, []).append(float(value))
        if exemplar is not None:
            self.exemplars.setdefault(series, exemplar)

    def lines(self, fold: Callable[[list[float]], float]) -> Iterable[str]:
        yield from (f"{comment}\n" for comment in self.comments)
        for series, values in self.values.items():
            exemplar = self.exemplars.get(series)
            yield f"{series} {fold(values)!r} {exemplar}\n" if exemplar else f"{series} {fold(values)!r}\n"


def merge(texts: Iterable[bytes]) -> bytes:
    """The sum of expositions, series by series, in the order of first appearance.

    Nearly all that the gateway exposes may be added: counters, histogram buckets, sums and counts, and gauges that
    count things. HELP, TYPE and UNIT lines are kept once.
    """
    families: dict[str, _Family] = {}
    ended = False
    for text in texts:
        family = families.setdefault("", _Family())
        for line in text.decode().splitlines():
            if line == _EOF:
                ended = True
            elif line.startswith("#"):
                family = families.setdefault(line.split(" ", 3)[2], _Family())
                if line not in family.comments:
                    family.comments.append(line)
            elif line:
                family.take(line)
    merged = [line for name, family in families.items() for line in family.lines(_fold(name))]
    return "".join([*merged, f"{_EOF}\n"] if ended else merged).encode()


def _fold(family: str) -> Callable[[list[float]], float]:
    if family.startswith(MEANS):
        return _mean
    return max if MAXIMA and family.startswith(MAXIMA) else sum


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
