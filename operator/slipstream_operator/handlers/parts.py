"""The parts that the reconcilers of both kinds share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from slipstream_operator.cluster.cache import ObjectCache
from slipstream_operator.cluster.evidence_archive import EvidenceArchive
from slipstream_operator.cluster.gateway_reports import GatewayReports
from slipstream_operator.cluster.spec_index import SpecIndex
from slipstream_operator.rollout.checks import CanaryChecks
from slipstream_operator.rollout.evidence import CollectedEvidence
from slipstream_operator.status.events import EventPoster
from slipstream_operator.status.writer import StatusWriter


class Parts(NamedTuple):
    """`clock` has a time zone."""

    cache: ObjectCache
    specs: SpecIndex
    gateways: GatewayReports
    evidence: CollectedEvidence
    archive: EvidenceArchive
    checks: CanaryChecks
    statuses: StatusWriter
    events: EventPoster
    clock: Callable[[], datetime]
