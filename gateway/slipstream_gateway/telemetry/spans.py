"""One span per request, with the names of the GenAI semantic conventions where they exist (see `genai`).

Attributes are numbers and codes: no text of a prompt or an answer, no stop strings, no key.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue
from slipstream_core.types import GenerationRequest

from slipstream_gateway.request.outcome import Outcome
from slipstream_gateway.telemetry.genai import API_TYPES, OPERATIONS, PROVIDER, Timings

_PROPAGATOR = TraceContextTextMapPropagator()
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(?:-[!-~]{1,400})?")
"""W3C Trace Context, with the room that it leaves to later versions."""
_DEFAULT_PORTS = {"http": 80, "https": 443}
# Statuses that are no errors of the gateway or its upstreams.
_FINE = ("ok", "cancelled", "invalid_request")


class RequestSpan:
    """A span from decision to last byte; its end is also recorded in the histograms. Costs next to nothing without an
    exporter of spans."""

    def __init__(self, span: trace.Span, traceparent: str | None, timings: Timings) -> None:
        self._span = span
        self._traceparent = traceparent
        self._timings = timings

    def headers(self) -> tuple[tuple[str, str], ...]:
        if not self._span.is_recording():
            return (("traceparent", self._traceparent),) if self._traceparent else ()
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, trace.set_span_in_context(self._span))
        return tuple(carrier.items())

    def broke_off(self, *, cause: str, result: str, output_tokens: int) -> None:
        self._span.add_event(
            "slipstream.stream.broke_off",
            {"slipstream.cause": cause, "slipstream.result": result, "gen_ai.usage.output_tokens": output_tokens},
        )

    def end(self, outcome: Outcome) -> None:
        link: trace.SpanContext | None = None
        if self._span.is_recording():
            self._span.set_attributes(_answer_attributes(outcome))
            if outcome.status not in _FINE:
                self._span.set_status(trace.StatusCode.ERROR, outcome.status)
            context = self._span.get_span_context()
            link = context if context.trace_flags.sampled else None
        self._timings.record(outcome, link)
        self._span.end()


class RequestTracer:
    """Starts the spans of requests."""

    def __init__(self, tracer: trace.Tracer, timings: Timings) -> None:
        self._tracer = tracer
        self._timings = timings

    def span(self, request: GenerationRequest, *, request_id: str, traceparent: str | None) -> RequestSpan:
        """The span of a request; `traceparent` is the client's, in W3C form. Others are ignored: the propagator
        would log them, and upstreams would get them."""
        if traceparent is not None and not _TRACEPARENT.fullmatch(traceparent):
            traceparent = None
        parent = _PROPAGATOR.extract({"traceparent": traceparent}) if traceparent else None
        name = f"{OPERATIONS[request.endpoint]} {request.model}"
        span = self._tracer.start_span(name, parent, trace.SpanKind.SERVER)
        if span.is_recording():
            span.set_attributes(_request_attributes(request, request_id))
        return RequestSpan(span, traceparent, self._timings)


def _request_attributes(request: GenerationRequest, request_id: str) -> dict[str, AttributeValue]:
    """Fields that the client set, as the conventions require; those of sampling always have a value."""
    attributes: dict[str, AttributeValue] = {
        "gen_ai.operation.name": OPERATIONS[request.endpoint],
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": request.model,
        "gen_ai.request.temperature": request.temperature,
        "gen_ai.request.top_p": request.top_p,
        "gen_ai.request.stream": request.stream,
        "openai.api.type": API_TYPES[request.endpoint],
        "gen_ai.output.type": "json" if request.structured_output else "text",
        "slipstream.request_id": request_id,
    }
    if request.max_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = request.max_tokens
    if request.seed is not None:
        attributes["gen_ai.request.seed"] = request.seed
    if request.top_k > 0:
        attributes["gen_ai.request.top_k"] = float(request.top_k)
    if request.n > 1:
        attributes["gen_ai.request.choice.count"] = request.n
    return attributes


def _answer_attributes(outcome: Outcome) -> dict[str, AttributeValue]:
    decision, usage = outcome.decision, outcome.usage
    attributes: dict[str, AttributeValue] = {
        "gen_ai.response.model": outcome.model,
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        **_server(outcome.server),
        "slipstream.pair": outcome.pair,
        "slipstream.arm": str(decision.arm),
        "slipstream.class": decision.request_class,
        "slipstream.reason": str(decision.reason),
        "slipstream.draft_length": decision.draft_length,
        "slipstream.drafted_tokens": usage.drafted,
        "slipstream.accepted_tokens": usage.accepted,
        "slipstream.target_steps": usage.steps,
        "slipstream.status": outcome.status,
    }
    if outcome.finish_reasons:
        attributes["gen_ai.response.finish_reasons"] = outcome.finish_reasons
    if outcome.ttft_s is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = outcome.ttft_s
    if outcome.tpot_s is not None:
        attributes["slipstream.time_per_output_token_s"] = outcome.tpot_s
    if outcome.status != "ok":
        attributes["error.type"] = outcome.status
    if usage.draft:
        attributes["slipstream.draft"] = usage.draft
    if decision.revision:
        attributes["slipstream.revision"] = decision.revision
    if decision.saving_s is not None:
        attributes["slipstream.predicted_saving_s"] = decision.saving_s
    if outcome.resumed:
        attributes["slipstream.resumed"] = outcome.resumed
    for name, value in decision.numbers.items():
        attributes[f"slipstream.decision.{name}"] = value
    return attributes


def _server(name: str) -> dict[str, AttributeValue]:
    """The address behind the gateway, `http://host:port` or `grpc://host:port`, as the conventions have it."""
    if not name:
        return {}
    parts = urlsplit(name if "://" in name else f"grpc://{name}")
    port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    address: dict[str, AttributeValue] = {"server.address": parts.hostname or name}
    return address | ({"server.port": port} if port is not None else {})
