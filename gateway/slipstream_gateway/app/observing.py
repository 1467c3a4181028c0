"""Which parts telemetry reads when somebody looks: a line for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream_gateway.access import Gate
from slipstream_gateway.app.sources import pairs
from slipstream_gateway.telemetry.access import observe_access
from slipstream_gateway.telemetry.conformance import observe_conformance
from slipstream_gateway.telemetry.departures import observe_departures
from slipstream_gateway.telemetry.failover import observe_failover
from slipstream_gateway.telemetry.overload import observe_overload
from slipstream_gateway.telemetry.workers import Question

if TYPE_CHECKING:
    from slipstream_gateway.app.wiring import Parts


def observe(parts: Parts) -> None:
    """Joins telemetry, and what workers ask of each other, to the parts."""
    telemetry, learner, evidence = parts.telemetry, parts.learner, parts.evidence
    telemetry.observe_configuration(parts.source.status)
    telemetry.observe_parity(parts.parity.counts)
    telemetry.observe_store(parts.store.status)
    telemetry.observe_estimates(lambda: learner.fingerprints)
    telemetry.observe_evidence(
        lambda: [(pair, found) for pair in pairs(parts.fleet) for found in evidence.report(pair)]
    )
    observe_failover(telemetry.meter, parts.resumptions.counts)
    observe_departures(telemetry.meter, lambda: parts.departures.count)
    observe_conformance(
        telemetry.meter,
        replicas=parts.conformance.replicas,
        checks=parts.conformance.counts,
        evidence=parts.parity.evidence,
    )
    observe_overload(
        telemetry.meter,
        admission=parts.admission,
        retries=parts.retries,
        fleet=parts.fleet,
    )
    if isinstance(parts.gate, Gate):
        observe_access(telemetry.meter, parts.gate.status)
    parts.siblings.answer(Question.METRICS, telemetry.exposition)
    parts.siblings.answer(Question.OPENMETRICS, telemetry.openmetrics)
