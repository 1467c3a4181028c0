"""Instruments that are read at each scrape or export, and the counters of requests.

Each area of the gateway counts in plain numbers and registers a callable that reads them, because an increment costs
8 µs with the OpenTelemetry SDK and 0.05 µs as a plain number (docs/decisions/own-counters.md). Attributes come from
closed sets or from the manifest, so that no client can add a series. Those of requests are pair, request class and arm,
for some also reason and status.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from slipstream_gateway.request.outcome import Outcome, Recorder

Values = Iterable[tuple[float, Mapping[str, str]]]
"""The present values, each with its attributes."""
Read = Callable[[], Values]


def counter(meter: Meter, name: str, description: str, read: Read, *, unit: str = "") -> None:
    """A sum that only grows. Prometheus shows it as `<name>_<unit>_total`."""
    meter.create_observable_counter(name, [_observe(read)], unit, description)


def gauge(meter: Meter, name: str, description: str, read: Read, *, unit: str = "") -> None:
    """A value that rises and falls."""
    meter.create_observable_gauge(name, [_observe(read)], unit, description)


def single(read: Callable[[], float]) -> Read:
    """Reads one value without attributes."""
    return lambda: [(read(), {})]


def _observe(read: Read) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _: [Observation(value, attributes) for value, attributes in read()]


_ArmKey = tuple[str, str, str]


class _Series:
    """The sums of one (pair, class, arm)."""

    def __init__(self, attributes: dict[str, str]) -> None:
        self.attributes = attributes
        self.output = 0
        self.drafted = 0
        self.accepted = 0
        self.steps = 0
        self.requests: dict[tuple[str, str], int] = {}


class _OfDraft:
    """The sums of the answers with one draft, of those that an engine chooses from."""

    def __init__(self) -> None:
        self.answers = self.output = 0
        self.engine_s = 0.0


class Metrics(Recorder):
    """Records finished, rejected and failed requests."""

    def __init__(self, meter: Meter, *, in_flight: Callable[[], int], queued: Callable[[], int]) -> None:
        self._series: dict[_ArmKey, _Series] = {}
        self._drafts: dict[tuple[str, str, str], _OfDraft] = {}
        self._upstream_errors: dict[tuple[str, str], int] = {}
        self._rejections: dict[str, int] = {}
        self._register(meter)
        gauge(meter, "slipstream.requests.in_flight", "Requests in flight.", single(in_flight))
        gauge(meter, "slipstream.requests.queued", "Requests that wait for a slot.", single(queued))

    def record(self, outcome: Outcome) -> None:
        decision, usage = outcome.decision, outcome.usage
        key = (outcome.pair, decision.request_class, decision.arm)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = _Series(
                {"pair": outcome.pair, "class": decision.request_class, "arm": str(decision.arm)}
            )
        count = (decision.reason, outcome.status)
        series.requests[count] = series.requests.get(count, 0) + 1
        series.output += usage.output_tokens
        series.drafted += usage.drafted
        series.accepted += usage.accepted
        series.steps += usage.steps
        if usage.draft:
            of_draft = self._drafts.setdefault((outcome.pair, decision.request_class, usage.draft), _OfDraft())
            of_draft.answers += 1
            of_draft.output += usage.output_tokens
            of_draft.engine_s += usage.engine_s or 0.0

    def rejected(self, error: str) -> None:
        """Counts a request that was refused before a decision; `error` is from a closed set."""
        self._rejections[error] = self._rejections.get(error, 0) + 1

    def attempt_failed(self, *, server: str, error: str) -> None:
        key = (server, error)
        self._upstream_errors[key] = self._upstream_errors.get(key, 0) + 1

    def _register(self, meter: Meter) -> None:
        def sums(read: Callable[[_Series], int]) -> Read:
            return lambda: [(read(series), series.attributes) for series in list(self._series.values())]

        def drafts(read: Callable[[_OfDraft], float]) -> Read:
            return lambda: [
                (read(sums), {"pair": pair, "class": name, "draft": draft})
                for (pair, name, draft), sums in list(self._drafts.items())
            ]

        for name, description, read in (
            ("requests", "Requests that got a decision.", self._read_requests),
            ("output.tokens", "Generated tokens.", sums(lambda series: series.output)),
            ("drafted.tokens", "Proposed draft tokens.", sums(lambda series: series.drafted)),
            ("accepted.tokens", "Accepted draft tokens.", sums(lambda series: series.accepted)),
            ("target.steps", "Forward passes of the target after the prompt.", sums(lambda series: series.steps)),
            ("draft.answers", "Answers by their draft.", drafts(lambda draft: draft.answers)),
            ("draft.output.tokens", "Generated tokens by their draft.", drafts(lambda draft: draft.output)),
            ("draft.engine.seconds", "Engine time by draft.", drafts(lambda draft: draft.engine_s)),
            ("upstream.errors", "Failed attempts at upstreams.", self._read_upstream_errors),
            ("rejections", "Requests refused before a decision.", self._read_rejections),
        ):
            counter(meter, f"slipstream.{name}", description, read)

    def _read_requests(self) -> list[tuple[float, dict[str, str]]]:
        return [
            (count, {**series.attributes, "reason": str(reason), "status": status})
            for series in list(self._series.values())
            for (reason, status), count in list(series.requests.items())
        ]

    def _read_upstream_errors(self) -> list[tuple[float, dict[str, str]]]:
        errors = list(self._upstream_errors.items())
        return [(count, {"endpoint": server, "error": error}) for (server, error), count in errors]

    def _read_rejections(self) -> list[tuple[float, dict[str, str]]]:
        return [(count, {"error": error}) for error, count in list(self._rejections.items())]
