"""Instruments that are read at each scrape or export.

Each area of the gateway counts in plain numbers and registers a callable that reads them, because an increment costs
8 µs with the OpenTelemetry SDK and 0.05 µs as a plain number (`tests.benchmarks.observations`). Attributes come from
closed sets or from the manifest, so that no client can add a series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from opentelemetry.metrics import CallbackOptions, Meter, Observation

Values = Iterable[tuple[float, Mapping[str, str]]]
"""The present values, each with its attributes."""
Read = Callable[[], Values]


def counter(meter: Meter, name: str, description: str, read: Read, *, unit: str = "") -> None:
    """A sum that only grows. Prometheus shows it as `<name>_<unit>_total`."""
    meter.create_observable_counter(name, [_observe(read)], unit, description)


def gauge(meter: Meter, name: str, description: str, read: Read, *, unit: str = "") -> None:
    """A value that rises and falls. The values of several workers are added, unless the name is in `workers.MEANS` or
    `workers.MAXIMA`."""
    meter.create_observable_gauge(name, [_observe(read)], unit, description)


def single(read: Callable[[], float]) -> Read:
    """Reads one value without attributes."""
    return lambda: [(read(), {})]


def _observe(read: Read) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _: [Observation(value, attributes) for value, attributes in read()]
