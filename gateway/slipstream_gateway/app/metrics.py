"""Which services telemetry reads when somebody looks: a line for each."""

from __future__ import annotations

from slipstream_gateway.access import KeyedAccess
from slipstream_gateway.app.sources import pairs
from slipstream_gateway.app.wiring import Services
from slipstream_gateway.telemetry.access import observe_access
from slipstream_gateway.telemetry.conformance import observe_conformance
from slipstream_gateway.telemetry.departures import observe_departures
from slipstream_gateway.telemetry.failover import observe_failover
from slipstream_gateway.telemetry.overload import observe_overload
from slipstream_gateway.telemetry.workers import PeerQuery


def observe(services: Services) -> None:
    """Joins telemetry, and what workers ask of each other, to the services."""
    telemetry, learner, evidence = services.telemetry, services.learner, services.evidence
    telemetry.observe_configuration(services.source.status)
    telemetry.observe_parity(services.parity.counts)
    telemetry.observe_store(services.store.status)
    telemetry.observe_estimates(lambda: learner.fingerprints)
    telemetry.observe_evidence(
        lambda: [(pair, found) for pair in pairs(services.fleet) for found in evidence.report(pair)]
    )
    observe_failover(telemetry.meter, services.resumptions.counts)
    observe_departures(telemetry.meter, lambda: services.departures.count)
    observe_conformance(
        telemetry.meter,
        replicas=services.conformance.replicas,
        checks=services.conformance.counts,
        evidence=services.parity.evidence,
    )
    observe_overload(
        telemetry.meter,
        admission=services.admission,
        retries=services.retries,
        fleet=services.fleet,
    )
    if isinstance(services.access, KeyedAccess):
        observe_access(telemetry.meter, services.access.status)
    services.peers.answer(PeerQuery.METRICS, telemetry.exposition)
    services.peers.answer(PeerQuery.OPENMETRICS, telemetry.openmetrics)
