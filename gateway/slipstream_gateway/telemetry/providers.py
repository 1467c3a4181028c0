"""Set-up of the OpenTelemetry SDK; nothing is global."""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry import trace
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from slipstream_core.settings import TelemetrySettings

from slipstream_gateway.request.outcome import Recorder
from slipstream_gateway.telemetry.genai import HistogramCollector, Timings
from slipstream_gateway.telemetry.metrics import Metrics
from slipstream_gateway.telemetry.spans import RequestTracer

_SCOPE = "slipstream_gateway"


class Telemetry:
    """Records requests (`recorder`, `tracer`), and exposes the metrics of this gateway. Areas of the gateway register
    theirs with `meter`: see `areas`."""

    def __init__(self, settings: TelemetrySettings, *, in_flight: Callable[[], int], queued: Callable[[], int]) -> None:
        resource = Resource.create({"service.name": "slipstream-gateway"})
        self._registry = CollectorRegistry()
        readers: list[MetricReader] = [
            PrometheusMetricReader(registry=self._registry, disable_target_info=True, scope_info_enabled=False)
        ]
        timings = Timings()
        self._registry.register(HistogramCollector(timings.all))
        if settings.export_metrics:
            from slipstream_gateway.telemetry.otlp import otlp_reader

            readers.append(otlp_reader(timings.all))
        self._meters = MeterProvider(
            metric_readers=readers,
            resource=resource,
            exemplar_filter=AlwaysOffExemplarFilter(),  # no instrument of the SDK records while a request runs
            shutdown_on_exit=False,
        )
        self._traces = _tracer_provider(settings, resource)
        self.tracer = RequestTracer(self._traces.get_tracer(_SCOPE), timings)
        self.meter = self._meters.get_meter(_SCOPE)
        self.recorder: Recorder = Metrics(self.meter, in_flight=in_flight, queued=queued)

    def exposition(self) -> bytes:
        """This gateway's metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def openmetrics(self) -> bytes:
        """The same in the OpenMetrics format."""
        text: bytes = generate_openmetrics(self._registry)  # type: ignore[no-untyped-call]
        return text

    def close(self) -> None:
        """Flushes the exporters; blocks for as long as they take."""
        self._meters.shutdown()
        if isinstance(self._traces, TracerProvider):
            self._traces.shutdown()


def _tracer_provider(settings: TelemetrySettings, resource: Resource) -> trace.TracerProvider:
    if not settings.export_traces:
        return trace.NoOpTracerProvider()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
