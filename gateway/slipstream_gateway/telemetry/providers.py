"""The OpenTelemetry SDK, set up in one place and handed in; nothing global."""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry import trace
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from prometheus_client import CollectorRegistry, generate_latest

from slipstream_gateway.director.outcome import Span
from slipstream_gateway.settings import TelemetrySettings
from slipstream_gateway.telemetry.metrics import Metrics
from slipstream_gateway.telemetry.spans import start_span

_SCOPE = "slipstream_gateway"


class Telemetry:
    """The director's observer, and what `/metrics` shows of this worker."""

    def __init__(self, settings: TelemetrySettings, *, in_flight: Callable[[], int], queued: Callable[[], int]) -> None:
        resource = Resource.create({"service.name": "slipstream-gateway"})
        self._registry = CollectorRegistry()
        readers: list[MetricReader] = [
            PrometheusMetricReader(registry=self._registry, disable_target_info=True, scope_info_enabled=False)
        ]
        if settings.export_metrics:
            readers.append(_otlp_metrics())
        self._meters = MeterProvider(
            metric_readers=readers,
            resource=resource,
            exemplar_filter=AlwaysOffExemplarFilter(),  # halves what a recorded value costs
            shutdown_on_exit=False,
        )
        self._traces = _tracer_provider(settings, resource)
        self._tracer = self._traces.get_tracer(_SCOPE)
        self._metrics = Metrics(self._meters.get_meter(_SCOPE), in_flight=in_flight, queued=queued)
        self.record = self._metrics.record
        self.rejected = self._metrics.rejected
        self.upstream_failed = self._metrics.upstream_failed
        self.observe_configuration = self._metrics.observe_configuration
        self.observe_parity = self._metrics.observe_parity
        self.observe_store = self._metrics.observe_store
        self.observe_estimates = self._metrics.observe_estimates
        self.observe_evidence = self._metrics.observe_evidence

    def span(self, *, model: str, operation: str, traceparent: str | None) -> Span:
        return start_span(self._tracer, model=model, operation=operation, traceparent=traceparent)

    def exposition(self) -> bytes:
        """This worker's metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def close(self) -> None:
        """Flushes the exporters; blocks for as long as they take."""
        self._meters.shutdown()
        if isinstance(self._traces, TracerProvider):
            self._traces.shutdown()


def _otlp_metrics() -> MetricReader:
    # Imported here: the exporter brings `requests`, which a gateway without OTLP has no use for.
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    return PeriodicExportingMetricReader(OTLPMetricExporter())


def _tracer_provider(settings: TelemetrySettings, resource: Resource) -> trace.TracerProvider:
    if not settings.export_traces:
        return trace.NoOpTracerProvider()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
