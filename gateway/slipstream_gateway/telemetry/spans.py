"""One span per request, by the GenAI semantic conventions where they have a name for it."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from slipstream_gateway.director.outcome import Outcome

_PROPAGATOR = TraceContextTextMapPropagator()
_OPERATIONS = {"chat": "chat", "completion": "text_completion"}


class RequestSpan:
    """A span from decision to last byte. Costs next to nothing where no exporter records it."""

    def __init__(self, span: trace.Span, traceparent: str | None) -> None:
        self._span = span
        self._traceparent = traceparent

    def headers(self) -> tuple[tuple[str, str], ...]:
        if not self._span.is_recording():
            return (("traceparent", self._traceparent),) if self._traceparent else ()
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, trace.set_span_in_context(self._span))
        return tuple(carrier.items())

    def end(self, outcome: Outcome) -> None:
        if self._span.is_recording():
            self._span.set_attributes(_attributes(outcome))
            if outcome.status not in ("ok", "cancelled", "invalid_request"):
                self._span.set_status(trace.StatusCode.ERROR, outcome.status)
        self._span.end()


def start_span(tracer: trace.Tracer, *, model: str, operation: str, traceparent: str | None) -> RequestSpan:
    """The span of a request; `traceparent` is the client's, W3C form."""
    parent = _PROPAGATOR.extract({"traceparent": traceparent}) if traceparent else None
    span = tracer.start_span(f"{_OPERATIONS[operation]} {model}", parent, trace.SpanKind.SERVER)
    if span.is_recording():
        span.set_attributes({"gen_ai.operation.name": _OPERATIONS[operation], "gen_ai.request.model": model})
    return RequestSpan(span, traceparent)


def _attributes(outcome: Outcome) -> dict[str, AttributeValue]:
    decision, usage = outcome.decision, outcome.usage
    attributes: dict[str, AttributeValue] = {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
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
    if outcome.ttft_s is not None:
        attributes["slipstream.time_to_first_token_s"] = outcome.ttft_s
    if outcome.tpot_s is not None:
        attributes["slipstream.time_per_output_token_s"] = outcome.tpot_s
    if outcome.status != "ok":
        attributes["error.type"] = outcome.status
    if outcome.finish_reasons:
        attributes["gen_ai.response.finish_reasons"] = outcome.finish_reasons
    if decision.saving_s is not None:
        attributes["slipstream.predicted_saving_s"] = decision.saving_s
    for name, value in decision.numbers.items():
        attributes[f"slipstream.decision.{name}"] = value
    return attributes
