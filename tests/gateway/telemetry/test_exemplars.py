"""From a bucket of a histogram to the trace of a request that fell into it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from slipstream_core.environment import telemetry_settings
from slipstream_core.settings import TelemetrySettings
from slipstream_core.types import Arm, Decision, Endpoint, GenerationRequest, Reason
from slipstream_gateway.request.outcome import Outcome
from slipstream_gateway.telemetry.providers import Telemetry
from slipstream_gateway.upstreams.base import Usage

TRACE = "0af7651916cd43dd8448eb211c80319c"
DURATION = "gen_ai_server_request_duration_seconds"
REQUEST = GenerationRequest(endpoint=Endpoint.COMPLETION, model="acme-7b", prompt="")
OUTCOME = Outcome(
    pair="acme",
    model="acme-7b",
    decision=Decision(
        arm=Arm.PLAIN, reason=Reason.NO_DRAFT, request_class="code/long", draft_length=0, detail="", numbers={}
    ),
    status="ok",
    e2e_s=0.5,
    ttft_s=0.1,
    tpot_s=0.02,
    usage=Usage(prompt_tokens=9, output_tokens=20),
    endpoint=Endpoint.COMPLETION,
)


@pytest.fixture
def exporting(monkeypatch: pytest.MonkeyPatch, otlp_receiver: Any) -> Any:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", otlp_receiver.url)
    telemetry = Telemetry(telemetry_settings(), in_flight=lambda: 0, queued=lambda: 0)
    yield telemetry
    telemetry.close()


def serve(telemetry: Telemetry, outcome: Outcome = OUTCOME, *, sampled: bool = True) -> None:
    parent = f"00-{TRACE}-b7ad6b7169203331-0{int(sampled)}"
    span = telemetry.tracer.span(REQUEST, request_id="r1", traceparent=parent)
    telemetry.recorder.record(outcome)
    span.end(outcome)


def exemplars(text: bytes) -> dict[str, list[Any]]:
    """By family, as a scraper reads them."""
    families = text_string_to_metric_families(text.decode())
    return {family.name: [s.exemplar for s in family.samples if s.exemplar] for family in families}


def test_a_sampled_trace_is_found_by_the_bucket_that_its_request_fell_into(exporting: Telemetry) -> None:
    serve(exporting)
    [found] = exemplars(exporting.openmetrics())[DURATION]
    assert found.labels["trace_id"] == TRACE
    assert found.value == 0.5
    [bucket] = [line for line in exporting.openmetrics().decode().splitlines() if TRACE in line and DURATION in line]
    assert 'le="0.64"' in bucket


def test_the_plain_text_format_has_no_exemplars(exporting: Telemetry) -> None:
    serve(exporting)
    assert b"trace_id" not in exporting.exposition()


def test_a_trace_that_is_not_sampled_leads_nowhere_and_is_not_shown(exporting: Telemetry) -> None:
    serve(exporting, sampled=False)
    assert exemplars(exporting.openmetrics())[DURATION] == []


def test_without_an_exporter_there_are_no_exemplars() -> None:
    telemetry = Telemetry(TelemetrySettings(), in_flight=lambda: 0, queued=lambda: 0)
    serve(telemetry)
    assert exemplars(telemetry.openmetrics())[DURATION] == []
    telemetry.close()


def test_an_answer_that_failed_has_a_duration_with_its_error_and_nothing_else() -> None:
    telemetry = Telemetry(TelemetrySettings(), in_flight=lambda: 0, queued=lambda: 0)
    serve(telemetry, msgspec.structs.replace(OUTCOME, status="upstream_failed"))
    counts = [line for line in telemetry.exposition().decode().splitlines() if "gen_ai" in line and "_count" in line]
    [only] = counts
    assert only.startswith(DURATION)
    assert 'error_type="upstream_failed"' in only
    telemetry.close()


def test_histograms_go_out_by_otlp_with_their_exemplars(exporting: Telemetry, otlp_receiver: Any) -> None:
    serve(exporting)
    exporting.close()
    [body] = [body for path, body in otlp_receiver.got if path == "/v1/metrics"]
    scopes = ExportMetricsServiceRequest.FromString(body).resource_metrics[0].scope_metrics
    metrics = {metric.name: metric for scope in scopes for metric in scope.metrics}
    [point] = metrics["gen_ai.server.request.duration"].histogram.data_points
    assert (point.count, point.sum, point.min, point.max) == (1, 0.5, 0.5, 0.5)
    assert sum(point.bucket_counts) == 1
    assert point.bucket_counts[list(point.explicit_bounds).index(0.64)] == 1
    assert [found.trace_id.hex() for found in point.exemplars] == [TRACE]
    tokens = metrics["gen_ai.client.token.usage"]
    assert tokens.unit == "{token}"
    assert sorted(point.sum for point in tokens.histogram.data_points) == [9.0, 20.0]
    assert "slipstream.requests" in metrics
