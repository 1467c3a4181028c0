"""What one observation costs: our counters and histograms, prometheus_client's and the OpenTelemetry SDK's.

    python -m tests.benchmarks.observations

CPU time per observation without that of the loop, median of 15 rounds by turns. A request has about ten observations.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import prometheus_client
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from prometheus_client import CollectorRegistry
from slipstream_gateway.telemetry.genai import Histogram

_BOUNDS = tuple(0.0005 * 1.5**power for power in range(21))
_VALUES = (0.003, 0.02, 0.3, 1.7)
_LABELS = {"operation": "chat", "model": "acme", "pair": "acme", "class": "chat/long", "arm": "speculative"}
_RUNS, _ROUNDS = 5_000, 15


def ways() -> dict[str, Callable[[float], object]]:
    ours = Histogram("ours", unit="s", description="", bounds=_BOUNDS).series(_LABELS)
    counts = {"speculation_pays": 0}

    def count(_: float) -> None:
        counts["speculation_pays"] += 1

    registry = CollectorRegistry()
    counter = prometheus_client.Counter("counter", "", list(_LABELS), registry=registry)
    histogram = prometheus_client.Histogram("histogram", "", list(_LABELS), registry=registry, buckets=_BOUNDS)
    counter_child, histogram_child = counter.labels(**_LABELS), histogram.labels(**_LABELS)
    meter = MeterProvider(
        metric_readers=[PrometheusMetricReader(registry=CollectorRegistry())],
        exemplar_filter=AlwaysOffExemplarFilter(),
        shutdown_on_exit=False,
    ).get_meter("observations")
    sdk_counter = meter.create_counter("counter")
    sdk_histogram = meter.create_histogram("histogram", explicit_bucket_boundaries_advisory=_BOUNDS)
    return {
        "the loop": lambda _: None,
        "counter: ours": count,
        "counter: prometheus_client, kept child": lambda _: counter_child.inc(),
        "counter: OpenTelemetry SDK": lambda _: sdk_counter.add(1, _LABELS),
        "histogram: ours": ours.record,
        "histogram: prometheus_client, kept child": histogram_child.observe,
        "histogram: OpenTelemetry SDK": lambda value: sdk_histogram.record(value, _LABELS),
    }


def main() -> None:
    found: dict[str, list[float]] = {}
    observe = ways()
    for _ in range(_ROUNDS):
        for name, record in observe.items():
            started = time.process_time()
            for _ in range(_RUNS):
                for value in _VALUES:
                    record(value)
            found.setdefault(name, []).append((time.process_time() - started) / _RUNS / len(_VALUES) * 1e6)
    loop = statistics.median(found.pop("the loop"))
    for name, times in found.items():
        low, high = min(times) - loop, max(times) - loop
        print(f"{name:<42} {statistics.median(times) - loop:6.2f} us  ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
