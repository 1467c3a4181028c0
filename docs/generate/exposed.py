"""Every metric that gateway and operator can expose, each with a sample: what the reference of metrics, and the check
of dashboards and alerts, go by. `tests/gateway/telemetry/test_exposed.py` holds a running gateway against it.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from itertools import chain
from types import SimpleNamespace
from typing import Any

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as text_format
from slipstream_core.redis.condition import StoreStatus
from slipstream_core.settings import TelemetrySettings
from slipstream_core.types import Arm, Decision, Endpoint, GenerationRequest, Reason
from slipstream_gateway.access import AccessStatus
from slipstream_gateway.access.keyed_access import KeyUse
from slipstream_gateway.admission import PairAdmission
from slipstream_gateway.capture.frames import CaptureCount
from slipstream_gateway.capture.frames import Result as CaptureResult
from slipstream_gateway.decide.estimate import ClassEvidence, ServerTimeSaved, TreatmentEffect
from slipstream_gateway.fleet.fleet import ConfigurationStatus
from slipstream_gateway.lossless.conformance import CheckCount, ReplicaConformance
from slipstream_gateway.lossless.findings import Result as CheckResult
from slipstream_gateway.lossless.findings import Subject
from slipstream_gateway.lossless.parity import ParityCount
from slipstream_gateway.request.candidates import Result
from slipstream_gateway.request.outcome import Outcome
from slipstream_gateway.request.search import ResumptionCount
from slipstream_gateway.telemetry.areas import (
    observe_access,
    observe_audit,
    observe_capture,
    observe_configuration,
    observe_conformance,
    observe_departures,
    observe_evidence,
    observe_failover,
    observe_parity,
    observe_store,
)
from slipstream_gateway.telemetry.overload import observe_overload
from slipstream_gateway.telemetry.providers import Telemetry
from slipstream_gateway.upstreams.base import Drafting, Usage
from slipstream_gateway.upstreams.pool import Circuit, ReplicaState
from slipstream_operator.cluster.resources import Kind, resources
from slipstream_operator.handlers.controller import Controller
from slipstream_operator.handlers.metrics import Metrics
from slipstream_operator.settings import OperatorSettings
from slipstream_operator.types import ServingDefaults

PAIR, CLASS = "llm/acme", "code/long"
_USAGE = Usage(prompt_tokens=9, output_tokens=20, drafted=15, accepted=12, steps=8, draft="support", engine_s=0.2)
_DECISION = Decision(
    arm=Arm.SPECULATIVE,
    reason=Reason.SPECULATION_PAYS,
    request_class=CLASS,
    draft_length=5,
    detail="",
    numbers={},
)
_EFFECT = TreatmentEffect(
    speculative_n=9.0,
    control_n=9.0,
    speculative_mean=1.0,
    control_mean=1.5,
    difference=-0.5,
    ci_low=-0.6,
    ci_high=-0.4,
    speed_up=1.5,
    speed_up_low=1.4,
    speed_up_high=1.6,
)


def gateway_metrics() -> list[Metric]:
    """The gateway's metric families."""
    telemetry = Telemetry(TelemetrySettings(), in_flight=lambda: 1, queued=lambda: 1)
    for status in ("ok", "upstream_failed"):
        _serve(telemetry, status)
    telemetry.recorder.rejected("overloaded")
    telemetry.recorder.attempt_failed(server="grpc://triton:8001", error="UpstreamFailed")
    observe_store(telemetry.meter, StoreStatus)
    observe_configuration(telemetry.meter, lambda: ConfigurationStatus(origin="cluster"))
    dropped = {"failed": 1}
    parity = ParityCount(
        pair=PAIR, request_class=CLASS, checked=2, mismatched=1, dropped=dropped, age_s=1.0, evidence=0.0
    )
    observe_parity(telemetry.meter, lambda: [parity])
    observe_evidence(telemetry.meter, lambda: [(PAIR, _evidence())])
    _observe_areas(telemetry)
    families = list(openmetrics(telemetry.openmetrics().decode()))
    telemetry.close()
    return families


def _observe_areas(telemetry: Telemetry) -> None:
    """What areas of the gateway register for themselves."""
    resumption = ResumptionCount(pair=PAIR, request_class=CLASS, cause="stalled", result=Result.RESUMED, count=1)
    observe_failover(telemetry.meter, lambda: [resumption])
    observe_audit(telemetry.meter, lambda: 1, lambda: 1)
    observe_departures(telemetry.meter, lambda: 1)
    use = KeyUse()
    access = AccessStatus(keys=1, denied={"forbidden": 1}, used={"key": use}, decided={"redis": 1}, shared=True)
    observe_access(telemetry.meter, lambda: access)
    captured = CaptureCount(pair=PAIR, result=CaptureResult.WRITTEN, answers=1)
    observe_capture(telemetry.meter, lambda: [captured])
    _observe_conformance(telemetry)
    _observe_overload(telemetry)


def _observe_conformance(telemetry: Telemetry) -> None:
    server = ReplicaConformance(
        pair=PAIR,
        index=0,
        server="http://vllm:8000",
        withheld={},
        findings=[],
        checked_s=time.time(),
        waits_for=None,
    )
    checks = CheckCount(pair=PAIR, subject=Subject.SAMPLED_SPECULATION, result=CheckResult.PASS, count=1)
    observe_conformance(telemetry.meter, replicas=lambda: [server], checks=lambda: [checks])


def _observe_overload(telemetry: Telemetry) -> None:
    """Of one pair with one server, at a moment when all has happened once."""
    gate = PairAdmission(
        pair=PAIR,
        limit=64,
        in_flight=1,
        queued=1,
        pressure=0.5,
        latency_ratio=1.0,
        waited=1,
        waited_s=0.1,
        refused={"queue_full": 1},
    )
    replica = ReplicaState(
        index=0,
        name="grpc://triton:8001",
        outstanding=1,
        circuit=Circuit.CLOSED,
        cause=None,
        retry_after_s=0.0,
        ejections={"failures": 1},
        drag=0.0,
        ttft_s=None,
    )
    server = SimpleNamespace(upstream=SimpleNamespace(drafting=Drafting(longest=4)))
    pool = SimpleNamespace(states=lambda: (replica,), replicas=(server,))
    served = SimpleNamespace(route=SimpleNamespace(key=PAIR), plain=pool, speculative=pool, fallback=None)
    moment: Any = SimpleNamespace(
        snapshot=lambda: (gate,),
        spent=1,
        refused=1,
        counts={(PAIR, "won"): 1},
        current=SimpleNamespace(routes={"acme": served}),
        use=SimpleNamespace(waiting=lambda: {PAIR: 1}),
    )
    observe_overload(telemetry.meter, admission=moment, retries=moment, fleet=moment)


def operator_metrics() -> list[Metric]:
    """The operator's metric families, but for those of its process."""
    metrics = Metrics()
    with metrics.reconcile(Kind.MODEL_PAIR):
        metrics.transition("ModelPair", "Normal", "Promoted")
        metrics.wrote("PATCH", "/apis/apps/v1/namespaces/llm/deployments/acme")
        metrics.event(Kind.MODEL_PAIR)
    _controller(metrics).observe(None, _pair_that_is_ready())
    return [family for family in text_format(metrics.page().decode()) if family.name.startswith("slipstream_")]


def _pair_that_is_ready() -> dict[str, Any]:
    namespace, name = PAIR.split("/")
    metadata = {"namespace": namespace, "name": name, "uid": "1", "resourceVersion": "1", "generation": 1}
    condition = {"type": "Ready", "status": "True", "reason": "External"}
    return {"kind": "ModelPair", "metadata": metadata, "status": {"conditions": [condition]}}


def _controller(metrics: Metrics) -> Controller:
    """A controller registers its gauges when it is made; one that never runs needs no cluster."""
    never: Any = None
    return Controller(
        client=never,
        resources=resources(),
        settings=OperatorSettings(),
        defaults=ServingDefaults(),
        evidence=never,
        fed=set(),
        metrics=metrics,
        clock=lambda: datetime.now(UTC),
        clock_s=time.monotonic,
    )


def labels_of(families: list[Metric]) -> dict[str, set[str]]:
    """The labels of every series, by its name as PromQL asks for it."""
    found: dict[str, set[str]] = {}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def all_series() -> dict[str, set[str]]:
    """Of gateway and operator."""
    return labels_of(list(chain(gateway_metrics(), operator_metrics())))


def _serve(telemetry: Telemetry, status: str) -> None:
    request = GenerationRequest(endpoint=Endpoint.CHAT, model="acme")
    span = telemetry.tracer.span(request, request_id="r", traceparent=None)
    outcome = Outcome(
        pair=PAIR,
        model="acme",
        decision=_DECISION,
        status=status,
        e2e_s=0.5,
        ttft_s=0.1,
        tpot_s=0.02,
        usage=_USAGE,
    )
    telemetry.recorder.record(outcome)
    span.end(outcome)


def _evidence() -> ClassEvidence:
    return ClassEvidence(
        request_class=CLASS,
        speculative=9,
        control=9,
        exploration=0,
        ttft_s=_EFFECT,
        tpot_s=_EFFECT,
        e2e_s=_EFFECT,
        cost=_EFFECT,
        server_s=_EFFECT,
        saved=ServerTimeSaved(seconds=1.0, low=0.5, high=1.5, plain_s=3.0),
    )
