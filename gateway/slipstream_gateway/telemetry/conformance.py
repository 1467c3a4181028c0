"""Which servers may speculate on what, how the checks of engines came out, and how far the tests of answers are.

A replica is its place in its pool: addresses are no labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from opentelemetry.metrics import Meter
from slipstream_core.types import Capability

from slipstream_gateway.conformance import CheckCount, ReplicaConformance
from slipstream_gateway.request.parity.sampled import SampledEvidence
from slipstream_gateway.request.parity.score import ALARM_AT
from slipstream_gateway.telemetry.instruments import counter, gauge
from slipstream_gateway.telemetry.overload import MOST_SHOWN


def observe_conformance(
    meter: Meter,
    *,
    replicas: Callable[[], Sequence[ReplicaConformance]],
    checks: Callable[[], Sequence[CheckCount]],
    evidence: Callable[[], Sequence[SampledEvidence]],
) -> None:
    """Shows them when somebody looks."""
    gauge(
        meter,
        "slipstream.engine_conformance",
        "1 where a server may use a capability, 0 where its engine cannot or a check withholds it.",
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
        "Checks of engines, by what they looked at and how they came out.",
        lambda: [
            (count.count, {"pair": count.pair, "subject": count.subject.value, "result": count.result.value})
            for count in checks()
        ],
    )
    gauge(
        meter,
        "slipstream.parity.evidence",
        f"What speaks against sampled speculative answers, in nats: the alarm is at {ALARM_AT:.1f}.",
        lambda: [(one.evidence, {"pair": one.pair, "class": one.request_class}) for one in evidence()],
    )
