"""Counters of requests. Attributes are pair, request class and arm, for some also reason and status."""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry.metrics import Meter

from slipstream_gateway.decide.estimate.evidence import ClassEvidence, TreatmentEffect
from slipstream_gateway.fleet.configuration import ConfigurationStatus
from slipstream_gateway.request.outcome import Outcome, Recorder
from slipstream_gateway.request.parity.parity import ParityCount

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


class Metrics(Recorder):
    """Records outcomes; `in_flight` and `queued` are asked when somebody looks."""

    def __init__(self, meter: Meter, *, in_flight: Callable[[], int], queued: Callable[[], int]) -> None:
        self._series: dict[_ArmKey, _Series] = {}
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

    def rejected(self, error: str) -> None:
        """Counts a request that was refused before a decision; `error` is from a closed set."""
        self._rejections[error] = self._rejections.get(error, 0) + 1

    def attempt_failed(self, *, server: str, error: str) -> None:
        key = (server, error)
        self._upstream_errors[key] = self._upstream_errors.get(key, 0) + 1

    def _register(self, meter: Meter) -> None:
        def sums(read: Callable[[_Series], int]) -> Read:
            return lambda: [(read(series), series.attributes) for series in list(self._series.values())]

        for name, description, read in (
            ("requests", "Requests that got a decision.", self._read_requests),
            ("output.tokens", "Generated tokens.", sums(lambda series: series.output)),
            ("drafted.tokens", "Proposed draft tokens.", sums(lambda series: series.drafted)),
            ("accepted.tokens", "Accepted draft tokens.", sums(lambda series: series.accepted)),
            ("target.steps", "Forward passes of the target after the prompt.", sums(lambda series: series.steps)),
            ("upstream.errors", "Failed attempts at upstreams.", self._read_upstream_errors),
            ("rejections", "Requests refused before a decision.", self._read_rejections),
        ):
            counter(meter, f"slipstream.{name}", description, read)

        counter("checked", "Speculative answers compared with a plain replay.", lambda c: [_parity(c, c.checked)])
        counter(
            "mismatched",
            "Compared answers that differ, or, where they are sampled, are not the target's.",
            lambda c: [_parity(c, c.mismatched)],
        )
        counter(
            "dropped",
            "Answers drawn for a comparison that did not come to one.",
            lambda c: [_parity(c, dropped, cause=cause) for cause, dropped in c.dropped.items()],
        )

    def observe_evidence(self, read: Callable[[], Iterable[tuple[str, ClassEvidence]]]) -> None:
        """The difference between the arms, by pair and class, with its 95 % interval; nothing where there is none."""

        def gauge(name: str, unit: str, what: str, effect: Callable[[ClassEvidence], TreatmentEffect]) -> None:
            def observe(_: CallbackOptions) -> Iterable[Observation]:
                return [
                    Observation(value, {"pair": pair, "class": found.request_class, "statistic": statistic})
                    for pair, found in read()
                    for statistic, value in _statistics(effect(found))
                ]

            description = f"{what}: speculative minus control, with its 95 % interval."
            self._meter.create_observable_gauge(f"slipstream.effect.{name}", [observe], unit, description)

        gauge("ttft", "s", "Time to first token", lambda found: found.ttft_s)
        gauge("tpot", "s", "Time per output token", lambda found: found.tpot_s)
        gauge("e2e", "s", "Time of an answer", lambda found: found.e2e_s)
        gauge("cost", "", "Cost of an answer", lambda found: found.cost)

        def speed_ups(_: CallbackOptions) -> Iterable[Observation]:
            return [
                Observation(value, {"pair": pair, "class": found.request_class, "statistic": statistic})
                for pair, found in read()
                for statistic, value in _speed_up(found.e2e_s)
            ]

        description = "How many times as long a control answer takes as a speculative one, with its 95 % interval."
        self._meter.create_observable_gauge("slipstream.effect.speed_up", [speed_ups], "", description)

    def observe_estimates(self, fingerprints: Callable[[], int]) -> None:
        """How much is remembered, asked when somebody looks."""
        _gauge(self._meter, "slipstream.estimates.fingerprints", "Kinds of requests with estimates.", fingerprints)

    def observe_configuration(self, read: Callable[[], ConfigurationStatus]) -> None:
        """What the gateway goes by, asked when somebody looks."""
        prefix = "slipstream.config."

        def gauge(
            name: str, unit: str, description: str, observe: Callable[[ConfigurationStatus], Observation]
        ) -> None:
            self._meter.create_observable_gauge(f"{prefix}{name}", [lambda _: [observe(read())]], unit, description)

        gauge("age", "s", "Time since the source was heard the last time.", lambda found: Observation(found.age_s))
        gauge("connected", "", "Whether changes arrive at once.", lambda found: Observation(int(found.connected)))
        gauge(
            "generation",
            "",
            "Always 1; the labels name the table that is in use and where it comes from.",
            lambda found: Observation(1, {"source": found.origin, "generation": found.generation}),
        )

    def observe_store(self, read: Callable[[], StoreStatus]) -> None:
        """How sharing outcomes goes, asked when somebody looks."""
        prefix = "slipstream.store."
        _gauge(self._meter, f"{prefix}connected", "Whether the store answers.", lambda: int(read().connected))
        _gauge(self._meter, f"{prefix}buffered", "Outcomes that the store does not have yet.", lambda: read().buffered)

        def counter(name: str, description: str, count: Callable[[StoreStatus], int]) -> None:
            self._meter.create_observable_counter(
                f"{prefix}{name}", [lambda _: [Observation(count(read()))]], description=description
            )

        counter("stored", "Outcomes of this gateway that the store took.", lambda found: found.stored)
        counter("received", "Outcomes of other replicas.", lambda found: found.received)
        counter("dropped", "Outcomes that a full buffer had no room for.", lambda found: found.dropped)
        counter("missed", "Outcomes of other replicas that left the store unread.", lambda found: found.missed)
        counter("skipped", "Entries of the store that are not outcomes of this format.", lambda found: found.skipped)

    def _observe(self, meter: Meter) -> None:
        def counter(name: str, description: str, read: Callable[[CallbackOptions], Iterable[Observation]]) -> None:
            meter.create_observable_counter(name, [read], description=description)

        counter("slipstream.requests", "Requests that got a decision.", self._read_requests)
        counter("slipstream.output.tokens", "Tokens generated.", self._sum(lambda series: series.output))
        counter("slipstream.drafted.tokens", "Draft tokens proposed.", self._sum(lambda series: series.drafted))
        counter("slipstream.accepted.tokens", "Draft tokens accepted.", self._sum(lambda series: series.accepted))
        counter("slipstream.target.steps", "Passes of the target after the prompt.", self._sum(lambda s: s.steps))
        counter("slipstream.upstream.errors", "Attempts that an upstream failed.", self._read_upstream_errors)
        counter("slipstream.rejections", "Requests refused before a decision.", self._read_rejections)

    def _sum(self, read: Callable[[_Series], int]) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            return [Observation(read(series), series.attributes) for series in list(self._series.values())]

        return observe

    def _read_requests(self, _: CallbackOptions) -> Iterable[Observation]:
        return [
            (count, {**series.attributes, "reason": str(reason), "status": status})
            for series in list(self._series.values())
            for (reason, status), count in list(series.requests.items())
        ]

    def _read_upstream_errors(self) -> list[tuple[float, dict[str, str]]]:
        errors = list(self._upstream_errors.items())
        return [(count, {"endpoint": endpoint, "error": error}) for (endpoint, error), count in errors]

    def _read_rejections(self, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(count, {"error": error}) for error, count in list(self._rejections.items())]


def _parity(count: ParityCount, value: int, **more: str) -> Observation:
    return Observation(value, {"pair": count.pair, "class": count.request_class, **more})


def _statistics(effect: TreatmentEffect) -> list[tuple[str, float]]:
    named = (("difference", effect.difference), ("ci_low", effect.ci_low), ("ci_high", effect.ci_high))
    return [(name, value) for name, value in named if value is not None]


def _speed_up(effect: TreatmentEffect) -> list[tuple[str, float]]:
    named = (("ratio", effect.speed_up), ("ci_low", effect.speed_up_low), ("ci_high", effect.speed_up_high))
    return [(name, value) for name, value in named if value is not None]


def _gauge(meter: Meter, name: str, description: str, read: Callable[[], int]) -> None:
    meter.create_observable_gauge(name, [lambda _: [Observation(read())]], description=description)
