"""Figures of a page of metrics in Prometheus' text format."""

from __future__ import annotations


def total(page: str, name: str, **labels: str) -> float:
    """The sum of the series called `name` that carry `labels`."""
    found = 0.0
    for line in page.splitlines():
        series, _, value = line.rpartition(" ")
        if series.partition("{")[0] == name and all(f'{key}="{text}"' in series for key, text in labels.items()):
            found += float(value)
    return found
