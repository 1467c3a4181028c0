"""OpenTelemetry's conventions for generative AI: names, units and buckets, and their meaning here.

github.com/open-telemetry/semantic-conventions-genai, docs/gen-ai (status: development). The gateway is a model server
to its clients (`gen_ai.server.*`) and a client of its upstreams (`gen_ai.client.*`). The attributes pair, class and arm
are added. No attribute has text of a prompt or an answer.
"""

from __future__ import annotations

from opentelemetry.trace import SpanContext
from slipstream_core.types import Endpoint

from slipstream_gateway.request.outcome import Outcome
from slipstream_gateway.telemetry.histograms import Histogram, Labels, Series

PROVIDER = "slipstream"
OPERATIONS = {Endpoint.CHAT: "chat", Endpoint.COMPLETION: "text_completion", Endpoint.RESPONSES: "chat"}
# The conventions call chat and responses one operation; this attribute of theirs separates them.
API_TYPES = {
    Endpoint.CHAT: "chat_completions",
    Endpoint.COMPLETION: "completions",
    Endpoint.RESPONSES: "responses",
}

# The conventions' buckets, with finer steps for small models on one machine.
_TTFT_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0)
_TPOT_S = (
    *(0.0005, 0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
)
_DURATION_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS = tuple(4.0**power for power in range(14))

_Key = tuple[str, str, str, str, Endpoint]


class _Answers:
    """The series of one pair, model, class, arm and endpoint, with one duration per error type."""

    def __init__(self, owner: Timings, labels: Labels) -> None:
        self._owner = owner
        self._labels = labels
        self.ttft = owner.ttft.series(labels)
        self.tpot = owner.tpot.series(labels)
        self.input = owner.tokens.series({**labels, "gen_ai.token.type": "input"})
        self.output = owner.tokens.series({**labels, "gen_ai.token.type": "output"})
        self._durations: dict[str, Series] = {}

    def duration(self, status: str) -> Series:
        found = self._durations.get(status)
        if found is None:
            error = {} if status == "ok" else {"error.type": status}
            found = self._durations[status] = self._owner.duration.series({**self._labels, **error})
        return found


class Timings:
    """The conventions' histograms of finished requests."""

    def __init__(self) -> None:
        self.duration = Histogram(
            "gen_ai.server.request.duration",
            unit="s",
            description="Time from the request to the last byte of its answer; `error.type` for incomplete answers.",
            bounds=_DURATION_S,
        )
        self.ttft = Histogram(
            "gen_ai.server.time_to_first_token",
            unit="s",
            description="Time to the first token of a streamed answer.",
            bounds=_TTFT_S,
        )
        self.tpot = Histogram(
            "gen_ai.server.time_per_output_token",
            unit="s",
            description="Time per output token after the first of a streamed answer.",
            bounds=_TPOT_S,
        )
        self.tokens = Histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Tokens of the prompt and of the answer, as counted by the upstream, of complete answers.",
            bounds=_TOKENS,
        )
        self.all = (self.duration, self.ttft, self.tpot, self.tokens)
        self._answers: dict[_Key, _Answers] = {}

    def record(self, outcome: Outcome, span: SpanContext | None = None) -> None:
        """`span` is that of a sampled trace."""
        decision = outcome.decision
        key = (outcome.pair, outcome.model, decision.request_class, decision.arm, outcome.endpoint)
        answers = self._answers.get(key)
        if answers is None:
            answers = self._answers[key] = _Answers(self, _labels(outcome))
        answers.duration(outcome.status).record(outcome.e2e_s, span)
        if outcome.status != "ok":
            return
        if outcome.ttft_s is not None:
            answers.ttft.record(outcome.ttft_s, span)
        if outcome.tpot_s is not None:
            answers.tpot.record(outcome.tpot_s, span)
        usage = outcome.usage
        if usage.exact:  # the conventions: a count that the upstream did not give must not be reported
            answers.input.record(usage.prompt_tokens, span)
            answers.output.record(usage.output_tokens, span)


def _labels(outcome: Outcome) -> Labels:
    return {
        "gen_ai.operation.name": OPERATIONS[outcome.endpoint],
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": outcome.model,
        "openai.api.type": API_TYPES[outcome.endpoint],
        "pair": outcome.pair,
        "class": outcome.decision.request_class,
        "arm": str(outcome.decision.arm),
    }
