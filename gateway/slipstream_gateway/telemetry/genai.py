"""OpenTelemetry's conventions for generative AI: names, units and buckets, and their meaning here.

github.com/open-telemetry/semantic-conventions-genai, docs/gen-ai (status: development). The gateway is a model server
to its clients (`gen_ai.server.*`) and a client of its upstreams (`gen_ai.client.*`). The attributes pair, class and arm
are added. No attribute has text of a prompt or an answer.

The histograms are our own: a value costs 0.1 µs, with exemplars that link to traces, 0.9 µs with prometheus_client and
9 µs with the OpenTelemetry SDK (docs/decisions/own-counters.md). With prometheus_client they would save 7 of 150
lines; the SDK's Prometheus exporter drops exemplars. Values are handed on in the SDK's data types.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import AggregationTemporality, HistogramDataPoint, Metric
from opentelemetry.sdk.metrics.export import Histogram as HistogramData
from opentelemetry.trace import SpanContext, format_span_id, format_trace_id
from prometheus_client import Metric as Family
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as Link
from slipstream_core.types import Endpoint

from slipstream_gateway.request.outcome import Outcome

_UNITS = {"s": "seconds"}  # Prometheus' spelling; units such as `{token}` are only remarks

Labels = Mapping[str, str]
_Bucket = tuple[str, float] | tuple[str, float, Link]


class _Trace(NamedTuple):
    """The last traced value in a bucket."""

    value: float
    at_s: float
    span: SpanContext


class Series:
    """The values of one set of attributes."""

    __slots__ = ("_bounds", "attributes", "counts", "low", "peak", "total", "traces")

    def __init__(self, bounds: Sequence[float], attributes: Labels) -> None:
        self._bounds = bounds
        self.attributes = attributes
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.low, self.peak = float("inf"), float("-inf")
        self.traces: dict[int, _Trace] = {}

    def record(self, value: float, span: SpanContext | None = None) -> None:
        """Counts `value`; `span` is that of a sampled trace, for an exemplar."""
        index = bisect_left(self._bounds, value)
        self.counts[index] += 1
        self.total += value
        if value < self.low:
            self.low = value
        if value > self.peak:
            self.peak = value
        if span is not None:
            self.traces[index] = _Trace(value, time.time(), span)


class Histogram:
    """One instrument. The caller keeps each series that `series` makes."""

    def __init__(self, name: str, *, unit: str, description: str, bounds: Sequence[float]) -> None:
        self.name = name
        self.unit = unit
        self.description = description
        self.bounds = tuple(bounds)
        self._series: list[Series] = []

    def series(self, attributes: Labels) -> Series:
        made = Series(self.bounds, attributes)
        self._series.append(made)
        return made

    def family(self) -> Family:
        """For Prometheus."""
        unit = _UNITS.get(self.unit, "")
        labels = sorted({name for series in self._series for name in series.attributes})
        family = HistogramMetricFamily(
            "_".join(filter(None, (_plain(self.name), unit))),
            self.description,
            labels=[_plain(name) for name in labels],
            unit=unit,
        )
        for series in self._series:
            if any(series.counts):
                values = [series.attributes.get(name, "") for name in labels]
                family.add_metric(values, _buckets(self.bounds, series), series.total)
        return family

    def metric(self, started_ns: int) -> Metric:
        """For the SDK's exporters."""
        now_ns = time.time_ns()
        points = [_point(self.bounds, series, started_ns, now_ns) for series in self._series if any(series.counts)]
        data = HistogramData(data_points=points, aggregation_temporality=AggregationTemporality.CUMULATIVE)
        return Metric(name=self.name, description=self.description, unit=self.unit, data=data)


class HistogramCollector(Collector):
    """Histograms for a registry of prometheus_client. Series without a value are not shown."""

    def __init__(self, histograms: Sequence[Histogram]) -> None:
        self._histograms = histograms

    def collect(self) -> Iterable[Family]:
        return [family for histogram in self._histograms if (family := histogram.family()).samples]


def _plain(name: str) -> str:
    return name.replace(".", "_")


def _buckets(bounds: Sequence[float], series: Series) -> list[_Bucket]:
    """Cumulative counts by bound, each with the last trace in its bucket."""
    buckets: list[_Bucket] = []
    total = 0
    for index, count in enumerate(list(series.counts)):
        total += count
        bound = str(float(bounds[index])) if index < len(bounds) else "+Inf"
        found = series.traces.get(index)
        buckets.append((bound, total) if found is None else (bound, total, _link(found)))
    return buckets


def _link(found: _Trace) -> Link:
    ids = {"trace_id": format_trace_id(found.span.trace_id), "span_id": format_span_id(found.span.span_id)}
    return Link(ids, found.value, found.at_s)


def _point(bounds: Sequence[float], series: Series, started_ns: int, now_ns: int) -> HistogramDataPoint:
    counts = list(series.counts)
    return HistogramDataPoint(
        attributes=dict(series.attributes),
        start_time_unix_nano=started_ns,
        time_unix_nano=now_ns,
        count=sum(counts),
        sum=series.total,
        bucket_counts=counts,
        explicit_bounds=bounds,
        min=series.low,
        max=series.peak,
        exemplars=[
            Exemplar({}, found.value, int(found.at_s * 1e9), found.span.span_id, found.span.trace_id)
            for found in list(series.traces.values())
        ],
    )


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
