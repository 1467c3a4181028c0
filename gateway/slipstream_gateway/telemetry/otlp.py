"""Export of metrics by OTLP, with our own histograms. Imported only if metrics are exported: the exporter imports
`requests`, which nothing else needs."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    MetricExportResult,
    MetricReader,
    MetricsData,
    PeriodicExportingMetricReader,
)

from slipstream_gateway.telemetry.genai import Histogram


def otlp_reader(histograms: Sequence[Histogram]) -> MetricReader:
    """A reader that exports the SDK's instruments and `histograms` every OTEL_METRIC_EXPORT_INTERVAL."""
    return PeriodicExportingMetricReader(_Exporter(histograms))


class _Exporter(OTLPMetricExporter):
    def __init__(self, histograms: Sequence[Histogram]) -> None:
        super().__init__()
        self._histograms = histograms
        self._started_ns = time.time_ns()

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **kwargs: object
    ) -> MetricExportResult:
        return super().export(self._completed(metrics_data), timeout_millis, **kwargs)

    def _completed(self, data: MetricsData) -> MetricsData:
        """`data` with the histograms, under the same resource and scope."""
        metrics = [metric for found in self._histograms if (metric := found.metric(self._started_ns)).data.data_points]
        first, *others = data.resource_metrics
        scope, *scopes = first.scope_metrics
        scope = dataclasses.replace(scope, metrics=[*scope.metrics, *metrics])
        return MetricsData([dataclasses.replace(first, scope_metrics=[scope, *scopes]), *others])
