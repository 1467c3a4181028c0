"""Metrics of the gateway's areas: access, capture, conformance, configuration, evidence, failover, parity, store.

Each function registers instruments that read an area's own numbers. A replica is labelled by its place in its pool;
addresses are no labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from opentelemetry.metrics import Meter
from slipstream_core.rate_limits import NANO_PER_USD
from slipstream_core.redis.condition import StoreStatus
from slipstream_core.types import Capability

from slipstream_gateway.access import AccessStatus
from slipstream_gateway.access.keyed_access import KeyUse
from slipstream_gateway.capture.frames import CaptureCount
from slipstream_gateway.decide.estimate.evidence import ClassEvidence, TreatmentEffect
from slipstream_gateway.fleet.fleet import ConfigurationStatus
from slipstream_gateway.lossless.conformance import CheckCount, ReplicaConformance
from slipstream_gateway.lossless.parity import ParityCount
from slipstream_gateway.lossless.score import ALARM_AT
from slipstream_gateway.request.search import ResumptionCount
from slipstream_gateway.telemetry.metrics import Read, Values, counter, gauge, single
from slipstream_gateway.telemetry.overload import MOST_SHOWN


def observe_access(meter: Meter, read: Callable[[], AccessStatus]) -> None:
    """`key` is a key's public id, from the key file or of a token's subject; of at most 1,000, then `other`."""

    def by(label: str, counts: Callable[[AccessStatus], Mapping[str, int]]) -> Read:
        return lambda: [(count, {label: name}) for name, count in counts(read()).items()]

    def by_key(value: Callable[[KeyUse], float]) -> Read:
        return lambda: [(value(use), {"key": key}) for key, use in read().used.items()]

    prefix = "slipstream.access."
    counter(meter, f"{prefix}denied", "Refused requests, by cause.", by("cause", lambda found: found.denied))
    counter(meter, f"{prefix}requests", "Admitted requests.", by_key(lambda use: use.requests))
    counter(meter, f"{prefix}tokens", "Tokens of prompts and answers.", by_key(lambda use: use.tokens))
    cost = by_key(lambda use: use.nano_usd / NANO_PER_USD)
    counter(meter, f"{prefix}cost", "Cost of the tokens, by the prices in the key file.", cost, unit="usd")
    gauge(meter, f"{prefix}keys", "Keys in the current key file.", single(lambda: read().keys))
    decided = by("by", lambda found: found.decided)
    counter(meter, "slipstream.limits.decided", "Decisions on limits, by decider: Redis or the gateway alone.", decided)
    gauge(
        meter,
        "slipstream.limits.shared",
        "Whether the replicas share their limits.",
        lambda: [(int(shared), {}) for shared in (read().shared,) if shared is not None],
    )


def observe_audit(meter: Meter, dropped: Callable[[], int], waiting: Callable[[], int]) -> None:
    counter(meter, "slipstream.audit.dropped", "Lines of the audit log that were lost.", single(dropped))
    gauge(meter, "slipstream.audit.waiting", "Lines of the audit log that are not written yet.", single(waiting))


def observe_capture(meter: Meter, read: Callable[[], Iterable[CaptureCount]]) -> None:
    counter(
        meter,
        "slipstream.capture.answers",
        "Answers drawn for capture, by result: written, or the cause of their loss.",
        lambda: [(found.answers, {"pair": found.pair, "result": found.result.value}) for found in read()],
    )


def observe_conformance(
    meter: Meter,
    *,
    replicas: Callable[[], Sequence[ReplicaConformance]],
    checks: Callable[[], Sequence[CheckCount]],
) -> None:
    gauge(
        meter,
        "slipstream.engine_conformance",
        "1 if a server may use a capability, 0 if its engine lacks it or a check withholds it.",
        lambda: [
            (
                float(capability not in replica.withheld),
                {"pair": replica.pair, "replica": str(replica.index), "capability": capability.value},
            )
            for replica in islice(replicas(), MOST_SHOWN)
            for capability in Capability
        ],
    )
    counter(
        meter,
        "slipstream.conformance.checks",
        "Engine checks, by subject and result.",
        lambda: [
            (count.count, {"pair": count.pair, "subject": count.subject.value, "result": count.result.value})
            for count in checks()
        ],
    )


def observe_configuration(meter: Meter, read: Callable[[], ConfigurationStatus]) -> None:
    prefix = "slipstream.config."
    age = single(lambda: read().age_s)
    gauge(meter, f"{prefix}age", "Time since the last answer of the source.", age, unit="s")
    gauge(meter, f"{prefix}connected", "Whether changes arrive at once.", single(lambda: int(read().connected)))

    def generation() -> Values:
        found = read()
        return [(1, {"source": found.origin, "generation": found.generation})]

    gauge(meter, f"{prefix}generation", "Always 1; the labels name the current table and its source.", generation)


def observe_departures(meter: Meter, read: Callable[[], int]) -> None:
    description = "Model names that were removed or renamed while in use."
    counter(meter, "slipstream.models.removed_in_use", description, single(read))


def observe_evidence(meter: Meter, read: Callable[[], Iterable[tuple[str, ClassEvidence]]]) -> None:
    """The difference between the arms, by pair and class, with its 95 % interval; nothing without data."""

    def by_class(statistics: Callable[[ClassEvidence], Mapping[str, float | None]]) -> Read:
        return lambda: [
            (value, {"pair": pair, "class": found.request_class, "statistic": statistic})
            for pair, found in read()
            for statistic, value in statistics(found).items()
            if value is not None
        ]

    def difference(effect: TreatmentEffect) -> dict[str, float | None]:
        return {"difference": effect.difference, "ci_low": effect.ci_low, "ci_high": effect.ci_high}

    for name, unit, subject, statistics in (
        ("ttft", "s", "Time to first token", lambda found: difference(found.ttft_s)),
        ("tpot", "s", "Time per output token", lambda found: difference(found.tpot_s)),
        ("e2e", "s", "Duration of an answer", lambda found: difference(found.e2e_s)),
        ("cost", "", "Cost of an answer", lambda found: difference(found.cost)),
        ("server", "s", "Servers' time of an answer", lambda found: difference(found.server_s)),
    ):
        description = f"{subject}: speculative minus control, with its 95 % interval."
        gauge(meter, f"slipstream.effect.{name}", description, by_class(statistics), unit=unit)

    def ratio(found: ClassEvidence) -> dict[str, float | None]:
        effect = found.e2e_s
        return {"ratio": effect.speed_up, "ci_low": effect.speed_up_low, "ci_high": effect.speed_up_high}

    def saved(found: ClassEvidence) -> dict[str, float | None]:
        one = found.saved
        return {} if one is None else {"saved": one.seconds, "ci_low": one.low, "ci_high": one.high}

    description = (
        "Servers' time that speculative answers since the start have saved, by the control, with its interval."
    )
    gauge(meter, "slipstream.saved.server", description, by_class(saved), unit="s")

    description = "Duration of a control answer divided by that of a speculative one, with its 95 % interval."
    gauge(meter, "slipstream.effect.speed_up", description, by_class(ratio))


def observe_failover(meter: Meter, read: Callable[[], Iterable[ResumptionCount]]) -> None:
    counter(
        meter,
        "slipstream.resumed",
        "Streams that broke after their first byte, by cause and by result.",
        lambda: [
            (
                found.count,
                {
                    "pair": found.pair,
                    "class": found.request_class,
                    "cause": found.cause,
                    "result": str(found.result),
                },
            )
            for found in read()
        ],
    )


def observe_parity(meter: Meter, read: Callable[[], Iterable[ParityCount]]) -> None:
    def labels(count: ParityCount) -> dict[str, str]:
        return {"pair": count.pair, "class": count.request_class}

    prefix = "slipstream.parity."
    counter(
        meter,
        f"{prefix}checked",
        "Speculative answers compared with a plain replay.",
        lambda: [(count.checked, labels(count)) for count in read()],
    )
    counter(
        meter,
        f"{prefix}mismatched",
        "Compared answers that differ, or that are less likely under the target than plain ones.",
        lambda: [(count.mismatched, labels(count)) for count in read()],
    )
    counter(
        meter,
        f"{prefix}dropped",
        "Answers chosen for a comparison that did not take place.",
        lambda: [
            (dropped, {**labels(count), "cause": cause}) for count in read() for cause, dropped in count.dropped.items()
        ],
    )
    gauge(
        meter,
        f"{prefix}age",
        "Time since the last comparison of a speculative answer with a plain one; nothing before the first.",
        lambda: [(count.age_s, labels(count)) for count in read() if count.age_s is not None],
        unit="s",
    )
    gauge(
        meter,
        f"{prefix}evidence",
        "Evidence against sampled speculative answers that are compared by likelihood, in nats; the alarm is at "
        f"{ALARM_AT:.1f}.",
        lambda: [(count.evidence, labels(count)) for count in read() if count.evidence is not None],
    )


def observe_store(meter: Meter, read: Callable[[], StoreStatus]) -> None:
    prefix = "slipstream.store."
    gauge(meter, f"{prefix}connected", "Whether the store answers.", single(lambda: int(read().connected)))
    gauge(meter, f"{prefix}buffered", "Outcomes not yet in the store.", single(lambda: read().buffered))
    counter(meter, f"{prefix}stored", "Outcomes of this gateway in the store.", single(lambda: read().stored))
    counter(meter, f"{prefix}received", "Outcomes of other replicas.", single(lambda: read().received))
    counter(meter, f"{prefix}dropped", "Outcomes dropped because the buffer was full.", single(lambda: read().dropped))
    missed = single(lambda: read().missed)
    counter(meter, f"{prefix}missed", "Outcomes of other replicas that left the store unread.", missed)
    skipped = single(lambda: read().skipped)
    counter(meter, f"{prefix}skipped", "Entries of the store that are not outcomes of this format.", skipped)
