"""The services that telemetry reads when metrics are collected: a line for each."""

from __future__ import annotations

from slipstream_gateway.access import KeyedAccess
from slipstream_gateway.app.sources import pairs
from slipstream_gateway.app.wiring import Services
from slipstream_gateway.telemetry.areas import (
    observe_access,
    observe_configuration,
    observe_conformance,
    observe_departures,
    observe_estimates,
    observe_evidence,
    observe_failover,
    observe_parity,
    observe_store,
)
from slipstream_gateway.telemetry.overload import observe_overload
from slipstream_gateway.telemetry.workers import PeerQuery


def observe(services: Services) -> None:
    """Connects telemetry, and the queries between workers, to the services."""
    telemetry, learner, evidence = services.telemetry, services.learner, services.evidence
    observe_configuration(telemetry.meter, services.source.status)
    observe_parity(telemetry.meter, services.parity.counts)
    observe_store(telemetry.meter, services.store.status)
    observe_estimates(telemetry.meter, lambda: learner.fingerprints)
    observe_evidence(
        telemetry.meter,
        lambda: [(pair, found) for pair in pairs(services.fleet) for found in evidence.report(pair)],
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
