"""The operator's metrics for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from slipstream_operator.cluster.resources import Kind

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_PREFIX = "slipstream_operator_"
_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

Family = TypeVar("Family", Counter, Gauge, Histogram)


class Metrics:
    """All metrics of one operator, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        text, labels = "Time of one reconcile.", ["kind", "outcome"]
        self._reconciles = self._made(Histogram, "reconcile_seconds", text, labels, buckets=_SECONDS)
        self._writes = self._made(Counter, "writes", "Writes that the API server accepted.", ["method", "resource"])
        self._events = self._made(Counter, "watch_events", "Watch events and listed objects.", ["kind"])
        name, text = "watch_last_event_timestamp_seconds", "Time of the last event of a kind."
        self._last_event = self._made(Gauge, name, text, ["kind"])
        text = "Transitions that became Kubernetes Events."
        self._notes = self._made(Counter, "transitions", text, ["kind", "type", "reason"])
        self._gauges: dict[str, Gauge] = {}

    def _made(self, family: type[Family], name: str, text: str, labels: list[str], **more: Any) -> Family:
        return family(f"{_PREFIX}{name}", text, labels, registry=self.registry, **more)

    def watch(self, name: str, text: str, read: Callable[[], float], labels: dict[str, str] | None = None) -> None:
        """A gauge `slipstream_operator_<name>` whose value is read at each scrape."""
        if name not in self._gauges:
            self._gauges[name] = self._made(Gauge, name, text, list(labels or ()))
        gauge = self._gauges[name]
        (gauge.labels(**labels) if labels else gauge).set_function(read)

    def count(
        self, name: str, text: str, labels: tuple[str, ...], read: Callable[[], Mapping[tuple[str, ...], int]]
    ) -> None:
        """A gauge `slipstream_operator_<name>` with a series for each key of `read()`. A key has a value for each
        label."""
        self.registry.register(_Counted(f"{_PREFIX}{name}", text, labels, read))

    @contextmanager
    def reconcile(self, kind: Kind) -> Iterator[None]:
        """Measure one reconcile and count its result."""
        started, outcome = time.perf_counter(), "error"
        try:
            yield
            outcome = "ok"
        finally:
            self._reconciles.labels(kind.value, outcome).observe(time.perf_counter() - started)

    def wrote(self, method: str, path: str) -> None:
        """Count a write with that HTTP method to the object or collection at `path`."""
        self._writes.labels(method, _resource_of(path)).inc()

    def transition(self, kind: str, type: str, reason: str) -> None:
        self._notes.labels(kind, type, reason).inc()

    def event(self, kind: Kind) -> None:
        self._events.labels(kind.value).inc()
        self._last_event.labels(kind.value).set_to_current_time()

    def page(self) -> bytes:
        return generate_latest(self.registry)


class _Counted(Collector):
    """A gauge whose series appear and disappear with the counted objects: a `Gauge` would keep old series."""

    def __init__(
        self, name: str, text: str, labels: tuple[str, ...], read: Callable[[], Mapping[tuple[str, ...], int]]
    ) -> None:
        self._name, self._text, self._labels, self._read = name, text, labels, read

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(self._name, self._text, labels=self._labels)
        for values, count in sorted(self._read().items()):
            family.add_metric(values, count)
        yield family


def _resource_of(path: str) -> str:
    """`deployments` of .../namespaces/NS/deployments/NAME, `modelpairs/status` of .../modelpairs/NAME/status."""
    _, _, rest = path.partition("/namespaces/")
    parts = rest.split("/")[1:]
    return "/".join((parts[0], *parts[2:])) if parts else "other"
