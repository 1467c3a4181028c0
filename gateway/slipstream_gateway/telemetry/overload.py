"""Metrics of admission, retries and the health of every replica.

A replica is labelled by its place in its pool; addresses are no labels. Only the first replicas of very large pools are
shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from opentelemetry.metrics import Meter
from slipstream_core.errors import UpstreamError

from slipstream_gateway.admission import Admission, PairAdmission
from slipstream_gateway.decide.route.pressure import SHRINK_FROM, STOP_AT
from slipstream_gateway.fleet.fleet import Fleet
from slipstream_gateway.fleet.snapshot import ServedRoute
from slipstream_gateway.request.retry_budget import RetryBudget
from slipstream_gateway.telemetry.metrics import Read, counter, gauge
from slipstream_gateway.upstreams.pool import Circuit, ReplicaState

MOST_REPLICAS = 64
MOST_SHOWN = 1000


def observe_overload(meter: Meter, *, admission: Admission, retries: RetryBudget, fleet: Fleet) -> None:
    _observe_admission(meter, admission.snapshot)
    gauge(
        meter,
        "slipstream.cold_start.waiting",
        "Requests that wait for the first server of a pair that scales to zero.",
        lambda: [(waiting, {"pair": pair}) for pair, waiting in fleet.use.waiting().items()],
    )
    counter(
        meter,
        "slipstream.retries",
        "Attempts beyond a request's first that the retry budget allowed or refused.",
        lambda: [(retries.spent, {"result": "allowed"}), (retries.refused, {"result": "refused"})],
    )
    gauge(
        meter,
        "slipstream.replica.state",
        "1 if the gateway sees a replica's arm in this state.",
        lambda: [
            (float(replica.circuit == circuit), {**labels, "state": str(circuit)})
            for labels, replica in islice(_replicas(fleet), MOST_SHOWN)
            for circuit in Circuit
        ],
    )
    counter(
        meter,
        "slipstream.replica.ejections",
        "Ejections of a replica's arm, by cause.",
        lambda: [
            (count, {**labels, "cause": cause})
            for labels, replica in islice(_replicas(fleet), MOST_SHOWN)
            for cause, count in replica.ejections.items()
        ],
    )

    gauge(
        meter,
        "slipstream.replica.longest_draft",
        "Longest draft of a server of engine kind vllm; 0 if it cannot draft or has not answered yet.",
        lambda: list(islice(_longest_drafts(fleet), MOST_SHOWN)),
    )


def _observe_admission(meter: Meter, read: Callable[[], tuple[PairAdmission, ...]]) -> None:
    def per_pair(value: Callable[[PairAdmission], float]) -> Read:
        return lambda: [(value(gate), {"pair": gate.pair}) for gate in read()]

    prefix = "slipstream.admission."
    gauge(meter, f"{prefix}limit", "Requests of a pair that may run at once.", per_pair(lambda gate: gate.limit))
    gauge(meter, f"{prefix}in_flight", "Running requests of a pair.", per_pair(lambda gate: gate.in_flight))
    gauge(meter, f"{prefix}queued", "Requests of a pair that wait for a slot.", per_pair(lambda gate: gate.queued))
    gauge(
        meter,
        f"{prefix}pressure",
        f"Share of slots in use, 1 while requests wait: drafts shrink above {SHRINK_FROM} and stop at {STOP_AT}.",
        per_pair(lambda gate: gate.pressure),
    )
    gauge(
        meter,
        f"{prefix}latency_ratio",
        "Ratio of the present time to first token to the usual one.",
        per_pair(lambda gate: gate.latency_ratio),
    )
    counter(meter, f"{prefix}waited", "Requests that waited for a slot.", per_pair(lambda gate: gate.waited))
    counter(
        meter,
        f"{prefix}wait",
        "Time that requests waited for a slot.",
        per_pair(lambda gate: gate.waited_s),
        unit="s",
    )
    counter(
        meter,
        f"{prefix}refused",
        "Requests that got no slot.",
        lambda: [
            (count, {"pair": gate.pair, "cause": cause}) for gate in read() for cause, count in gate.refused.items()
        ],
    )


def _longest_drafts(fleet: Fleet) -> Iterator[tuple[float, dict[str, str]]]:
    for served in _routes(fleet):
        pool = served.speculative
        for index, replica in enumerate(pool.replicas[:MOST_REPLICAS] if pool is not None else ()):
            drafting = replica.upstream.drafting
            if drafting.withheld is not None or drafting.longest is not None:
                labels = {"pair": served.route.key, "arm": "speculative", "replica": str(index)}
                yield float(drafting.longest or 0), labels


def _replicas(fleet: Fleet) -> Iterator[tuple[dict[str, str], ReplicaState]]:
    for served in _routes(fleet):
        pair = served.route.key
        arms = (("plain", served.plain), ("speculative", served.speculative), ("fallback", served.fallback))
        for arm, pool in arms:
            for state in pool.states()[:MOST_REPLICAS] if pool is not None else ():
                yield {"pair": pair, "arm": arm, "replica": str(state.index)}, state


def _routes(fleet: Fleet) -> Iterable[ServedRoute]:
    try:
        return fleet.current.routes.values()
    except UpstreamError:  # nothing is served yet
        return ()
