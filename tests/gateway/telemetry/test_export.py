"""OTLP goes out exactly when the standard variables say so: to a real HTTP receiver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from slipstream_core.environment import telemetry_settings
from slipstream_core.redis.condition import StoreStatus
from slipstream_core.settings import TelemetrySettings
from slipstream_core.types import Arm, Decision, Endpoint, GenerationRequest, Reason
from slipstream_gateway.decide.estimate import ClassEvidence, ServerTimeSaved, TreatmentEffect
from slipstream_gateway.request.outcome import Outcome
from slipstream_gateway.telemetry.areas import observe_evidence, observe_store
from slipstream_gateway.telemetry.providers import Telemetry
from slipstream_gateway.upstreams.base import Usage

from tests.gateway.pair_manifest import chat, manifest_text

REQUEST = GenerationRequest(endpoint=Endpoint.CHAT, model="acme-7b", max_tokens=64, seed=7, top_k=5, stop=("secret",))


@pytest.fixture
def receiver(otlp_receiver: Any) -> tuple[str, list[tuple[str, bytes]]]:
    return otlp_receiver.url, otlp_receiver.got


def outcome() -> Outcome:
    decision = Decision(
        arm=Arm.SPECULATIVE,
        reason=Reason.SPECULATION_PAYS,
        request_class="summarization/long",
        draft_length=5,
        detail="",
        numbers={"temperature": 0.5},
    )
    usage = Usage(prompt_tokens=9, output_tokens=20, drafted=15, accepted=12, steps=8)
    return Outcome(
        pair="acme",
        model="acme-7b",
        decision=decision,
        status="ok",
        e2e_s=0.5,
        ttft_s=0.1,
        tpot_s=0.02,
        usage=usage,
        server="grpc://10.0.0.7:8001",
    )


def effect(difference: float | None) -> TreatmentEffect:
    return TreatmentEffect(
        speculative_n=9.0,
        control_n=9.0,
        speculative_mean=1.0,
        control_mean=1.5,
        difference=difference,
        ci_low=None if difference is None else difference - 0.1,
        ci_high=None if difference is None else difference + 0.1,
        speed_up=None,
        speed_up_low=None,
        speed_up_high=None,
    )


def run_one(telemetry: Telemetry, parent: str | None = None) -> Any:
    span = telemetry.tracer.span(REQUEST, request_id="r1", traceparent=parent)
    headers = dict(span.headers())
    telemetry.recorder.record(outcome())
    span.end(outcome())
    return headers


def test_span_and_metrics_are_exported_with_the_decision(
    receiver: tuple[str, list[tuple[str, bytes]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, got = receiver
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    telemetry = Telemetry(telemetry_settings(), in_flight=lambda: 0, queued=lambda: 0)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = run_one(telemetry, parent)
    telemetry.close()
    assert {path for path, _ in got} == {"/v1/traces", "/v1/metrics"}
    [body] = [body for path, body in got if path == "/v1/traces"]
    [span] = ExportTraceServiceRequest.FromString(body).resource_spans[0].scope_spans[0].spans
    attributes = {item.key: item.value for item in span.attributes}
    assert span.name == "chat acme-7b"
    assert span.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert headers["traceparent"].split("-")[1:3] == [span.trace_id.hex(), span.span_id.hex()]
    assert attributes["gen_ai.operation.name"].string_value == "chat"
    assert attributes["slipstream.arm"].string_value == "speculative"
    assert attributes["slipstream.reason"].string_value == "speculation_pays"
    assert attributes["slipstream.decision.temperature"].double_value == 0.5
    assert attributes["gen_ai.usage.output_tokens"].int_value == 20
    assert attributes["gen_ai.provider.name"].string_value == "slipstream"
    assert attributes["gen_ai.request.max_tokens"].int_value == 64
    assert attributes["gen_ai.request.seed"].int_value == 7
    assert attributes["gen_ai.request.top_k"].double_value == 5.0
    assert attributes["gen_ai.response.time_to_first_chunk"].double_value == 0.1
    assert attributes["server.address"].string_value == "10.0.0.7"
    assert attributes["server.port"].int_value == 8001
    assert b"secret" not in body  # a stop string is the client's text


@pytest.mark.parametrize(
    ("variables", "traces", "metrics"),
    [
        ({}, False, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, True, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, True, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_METRICS_EXPORTER": "none"}, True, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"}, False, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False, False),
    ],
)
def test_signals_follow_the_standard_variables(variables: dict[str, str], traces: bool, metrics: bool) -> None:
    settings = telemetry_settings(variables)
    assert (settings.export_traces, settings.export_metrics) == (traces, metrics)


def test_without_an_exporter_the_clients_trace_goes_on_and_metrics_are_served() -> None:
    telemetry = Telemetry(telemetry_settings({}), in_flight=lambda: 3, queued=lambda: 0)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert run_one(telemetry, parent) == {"traceparent": parent}
    assert run_one(telemetry) == {}
    text = telemetry.exposition().decode()
    labels = 'arm="speculative",class="summarization/long",pair="acme"'
    assert f"slipstream_drafted_tokens_total{{{labels}}} 30.0" in text
    assert f"slipstream_accepted_tokens_total{{{labels}}} 24.0" in text
    assert f"slipstream_target_steps_total{{{labels}}} 16.0" in text
    conventional = (
        'arm="speculative",class="summarization/long",gen_ai_operation_name="chat",'
        'gen_ai_provider_name="slipstream",gen_ai_request_model="acme-7b",openai_api_type="chat_completions"'
    )
    assert f'gen_ai_server_time_to_first_token_seconds_count{{{conventional},pair="acme"}} 2.0' in text
    assert "slipstream_requests_in_flight 3.0" in text
    telemetry.close()


def test_the_difference_between_the_arms_is_shown_with_its_interval_and_not_where_there_is_none() -> None:
    telemetry = Telemetry(telemetry_settings({}), in_flight=lambda: 0, queued=lambda: 0)
    found = ClassEvidence(
        request_class="code/long",
        speculative=9,
        control=9,
        exploration=0,
        ttft_s=effect(0.0),
        tpot_s=effect(None),
        e2e_s=effect(-0.5),
        cost=effect(None),
        server_s=effect(-0.2),
        saved=ServerTimeSaved(seconds=1.8, low=0.9, high=2.7, plain_s=6.0),
    )
    observe_evidence(telemetry.meter, lambda: [("acme", found)])
    text = telemetry.exposition().decode()
    for statistic, value in (("difference", -0.5), ("ci_low", -0.6), ("ci_high", -0.4)):
        labels = f'class="code/long",pair="acme",statistic="{statistic}"'
        assert f"slipstream_effect_e2e_seconds{{{labels}}} {value}" in text
    assert "slipstream_effect_ttft_seconds{" in text
    assert "slipstream_effect_tpot_seconds{" not in text
    saved = 'slipstream_saved_server_seconds{class="code/long",pair="acme",statistic='
    for statistic, value in (("saved", 1.8), ("ci_low", 0.9), ("ci_high", 2.7)):
        assert f'{saved}"{statistic}"}} {value}' in text
    telemetry.close()


def test_the_store_tells_how_sharing_goes() -> None:
    telemetry = Telemetry(telemetry_settings({}), in_flight=lambda: 0, queued=lambda: 0)
    status = StoreStatus(connected=False, buffered=7, dropped=3, stored=20, received=11, missed=2)
    observe_store(telemetry.meter, lambda: status)
    text = telemetry.exposition().decode()
    assert "slipstream_store_connected 0.0" in text
    assert "slipstream_store_buffered 7.0" in text
    for name, value in (("dropped", 3), ("stored", 20), ("received", 11), ("missed", 2)):
        assert f"slipstream_store_{name}_total {value}.0" in text
    telemetry.close()


def test_a_span_says_what_went_wrong_and_why_the_answer_ended(
    receiver: tuple[str, list[tuple[str, bytes]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, got = receiver
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{url}/v1/traces")
    telemetry = Telemetry(telemetry_settings(), in_flight=lambda: 0, queued=lambda: 0)
    ended = msgspec.structs.replace(outcome(), status="upstream_failed", finish_reasons=("length",))
    telemetry.tracer.span(REQUEST, request_id="r1", traceparent=None).end(ended)
    telemetry.close()
    [body] = [body for path, body in got if path == "/v1/traces"]
    [span] = ExportTraceServiceRequest.FromString(body).resource_spans[0].scope_spans[0].spans
    attributes = {item.key: item.value for item in span.attributes}
    assert attributes["error.type"].string_value == "upstream_failed"
    [reason] = attributes["gen_ai.response.finish_reasons"].array_value.values
    assert reason.string_value == "length"


def test_no_client_can_add_a_series(gateway: Callable[..., Any], openai_server: Callable[..., Any]) -> None:
    served = gateway(manifest_text([openai_server().url]))

    def series() -> int:
        return len(httpx.get(f"{served.url}/metrics").text.splitlines())

    counts = []
    for index in range(3):
        for body in ({**chat("tokens=1"), "model": f"m{index}"}, chat("tokens=1", user=f"u{index}"), {"a": index}):
            headers = {"x-request-id": f"r{index}", "x-slipstream-mode": f"mode{index}" if index else "plain"}
            httpx.post(f"{served.url}/v1/chat/completions", json=body, headers=headers)
        counts.append(series())
    assert counts[1] == counts[2]


def test_time_per_token_is_told_for_one_choice_alone(
    gateway: Callable[..., Any], openai_server: Callable[..., Any]
) -> None:
    served = gateway(manifest_text([openai_server().url]))
    for n, count in ((2, 0), (1, 1)):
        body = chat("tokens=5 gap=0.01", stream=True, n=n)
        assert httpx.post(f"{served.url}/v1/chat/completions", json=body).status_code == 200
        assert served.metric("gen_ai_server_time_per_output_token_seconds_count") == count


def test_trace_context_of_any_length_is_nothing_for_the_log(caplog: pytest.LogCaptureFixture) -> None:
    telemetry = Telemetry(TelemetrySettings(), in_flight=lambda: 0, queued=lambda: 0)
    assert run_one(telemetry, "00-" + "a" * 600) == {}
    telemetry.close()
    assert caplog.records == []
