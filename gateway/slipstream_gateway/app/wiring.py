"""Builds the parts of the application, each once, and connects them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipstream_core.observation import Draws
from slipstream_core.settings import GatewaySettings

from slipstream_gateway.admission import Admission
from slipstream_gateway.api.access_control import AccessControl
from slipstream_gateway.app.implementations import build_access, classifier, configuration, outcome_store
from slipstream_gateway.app.implementations import connect as connect_server
from slipstream_gateway.capture.capturing import Capturing
from slipstream_gateway.capture.channel import CaptureChannel
from slipstream_gateway.capture.copies import captures_of
from slipstream_gateway.console.recent_traffic import RecentTraffic
from slipstream_gateway.decide.estimate import ArmComparisons, Learner
from slipstream_gateway.decide.route import fresh_draws
from slipstream_gateway.fleet.fleet import ConfigurationSource, Departures, Fleet
from slipstream_gateway.fleet.loaded_models import LoadedModels
from slipstream_gateway.fleet.snapshot import ReplicaKey
from slipstream_gateway.lossless.conformance import Conformance
from slipstream_gateway.lossless.parity import Parity
from slipstream_gateway.request.answers import Answers
from slipstream_gateway.request.call import Before
from slipstream_gateway.request.cold_start import ColdStarts
from slipstream_gateway.request.decider import Decider
from slipstream_gateway.request.dispatch import Dispatcher
from slipstream_gateway.request.observations import MemoryStore, Outcomes
from slipstream_gateway.request.outcome import Recorder
from slipstream_gateway.request.query_of_death import QueriesOfDeath
from slipstream_gateway.request.retry_budget import RetryBudget
from slipstream_gateway.request.search import Resumptions
from slipstream_gateway.telemetry.audit import Audit, AuditRecorder, LineSink, swaps
from slipstream_gateway.telemetry.providers import Telemetry
from slipstream_gateway.upstreams.base import Upstream
from slipstream_gateway.upstreams.tls import Credentials, UpstreamTls

if TYPE_CHECKING:
    from slipstream_core.redis.redis_store import RedisStore

Connect = Callable[[ReplicaKey, GatewaySettings, Credentials | None], Upstream]


@dataclass(frozen=True, kw_only=True, slots=True)
class Services:
    """The live services. A new service is a field here and a line in `build_services`."""

    fleet: Fleet
    tls: UpstreamTls
    audit: Audit
    recorders: Sequence[Recorder]
    source: ConfigurationSource
    dispatcher: Dispatcher
    resumptions: Resumptions
    deaths: QueriesOfDeath
    admission: Admission
    retries: RetryBudget
    learner: Learner
    evidence: ArmComparisons
    recent_traffic: RecentTraffic
    outcomes: Outcomes
    store: MemoryStore | RedisStore
    parity: Parity
    conformance: Conformance
    telemetry: Telemetry
    access: AccessControl
    departures: Departures
    loaded_models: LoadedModels
    capture: CaptureChannel | None


def build_services(
    settings: GatewaySettings, *, connect: Connect = connect_server, draw: Callable[[], Draws] = fresh_draws
) -> Services:
    """Builds all services; `connect` constructs the clients of servers, `draw` the draws of requests."""
    tls = UpstreamTls(settings.upstreams.tls)
    fleet = _fleet(settings, connect, tls)
    audit = _audit(settings, fleet)
    source = configuration(settings, fleet)
    admission = _admission(settings)
    learner, evidence, store = Learner(), ArmComparisons(), outcome_store(settings, fleet)
    outcomes = Outcomes(learner=learner, evidence=evidence, store=store)
    retries = RetryBudget(retry_share=settings.overload.retry_share, retries_per_s=settings.overload.retries_per_s)
    recent_traffic = RecentTraffic()
    telemetry = Telemetry(settings.telemetry, in_flight=lambda: admission.in_flight, queued=lambda: admission.queued)
    recorders = [telemetry.recorder, recent_traffic, *([AuditRecorder(audit)] if audit.is_on else [])]
    deaths = QueriesOfDeath(found=lambda seen: audit.event("query_of_death", content=seen.content, server=seen.server))
    conformance = Conformance(fleet=fleet, admission=admission, settings=settings.conformance, deaths=deaths)
    parity = Parity(fleet=fleet, admission=admission, deaths=deaths, distrust=conformance.distrust)
    resumptions = Resumptions(fleet=fleet, retries=retries, deadlines=settings.deadlines)
    capture = _capture(settings, fleet)
    dispatcher = Dispatcher(
        fleet=fleet,
        cold_starts=ColdStarts(fleet, max_held=settings.limits.max_queued),
        admission=admission,
        decider=Decider(classifier=classifier(settings), learner=learner),
        answers=Answers(resumptions=resumptions, deadlines=settings.deadlines, recorders=recorders, deaths=deaths),
        retries=retries,
        deadlines=settings.deadlines,
        outcomes=outcomes,
        tracer=telemetry.tracer,
        recorders=recorders,
        deaths=deaths,
        before=_before(parity, capture, fleet),
        draw=draw,
    )
    return Services(
        fleet=fleet,
        tls=tls,
        audit=audit,
        recorders=recorders,
        source=source,
        dispatcher=dispatcher,
        resumptions=resumptions,
        deaths=deaths,
        admission=admission,
        retries=retries,
        learner=learner,
        evidence=evidence,
        recent_traffic=recent_traffic,
        outcomes=outcomes,
        store=store,
        parity=parity,
        conformance=conformance,
        telemetry=telemetry,
        access=build_access(settings, audit),
        departures=Departures(fleet),
        loaded_models=LoadedModels(fleet),
        capture=capture,
    )


def _fleet(settings: GatewaySettings, connect: Connect, tls: UpstreamTls) -> Fleet:
    return Fleet(
        lambda key: connect(key, settings, tls.current),
        clock=time.monotonic,
        health=settings.health,
        tls=tls.fingerprint,
    )


def _audit(settings: GatewaySettings, fleet: Fleet) -> Audit:
    """The audit log, which follows the configuration."""
    audit = Audit(LineSink(settings.audit.file) if settings.audit.is_on else None)
    fleet.on_swap(swaps(audit))
    return audit


def _capture(settings: GatewaySettings, fleet: Fleet) -> CaptureChannel | None:
    """The channel to the capture writer, which follows the policies; None without a store."""
    if settings.capture_store is None:
        return None
    channel = CaptureChannel(settings.capture_store)
    fleet.on_swap(lambda _, after: channel.configure(captures_of(after.table)))
    return channel


def _before(parity: Parity, capture: CaptureChannel | None, fleet: Fleet) -> list[Before]:
    """The steps of the wings before the first attempt of a call."""
    if capture is None:
        return [parity.samples.draw]
    return [parity.samples.draw, Capturing(capture, fleet=fleet).draw]


def _admission(settings: GatewaySettings) -> Admission:
    limits = settings.limits
    return Admission(
        max_in_flight=limits.max_in_flight,
        max_queued=limits.max_queued,
        queue_timeout_s=limits.queue_timeout_s,
        overload=settings.overload,
    )
