"""The last server of a pair is removed when requests stop, and the first one is started by a request. Pure.

Only for pairs that scale to zero. Between one server and the maximum, the autoscaler decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from slipstream_core.manifest.model_pair import ModelPair
from slipstream_core.manifest.reports import LATELY_S
from slipstream_core.manifest.status import Condition, ConditionType

from slipstream_operator.reconcile.reasons import Reason
from slipstream_operator.reconcile.servers import count
from slipstream_operator.status.conditions import find, read_time
from slipstream_operator.types import Observed


class OwnNumber(NamedTuple):
    """`replicas` is the number of servers that the operator sets, None if it sets none. `next_look_s` is the time until
    that may change without an event."""

    replicas: int | None
    next_look_s: float | None = None


def own_number(
    pair: ModelPair, observed: Observed, last_request: datetime | None, conditions: Sequence[Condition], now: datetime
) -> OwnNumber:
    """The number for `pair`. `last_request` is the time at which a gateway last reported it in use, `conditions` are
    its present ones."""
    autoscaling = pair.serving.autoscaling
    if autoscaling is None or observed.deployment is None:
        return OwnNumber(None)
    if count(observed.deployment, "spec", "replicas") == 0:
        return OwnNumber(1 if autoscaling.min_replicas > 0 or observed.demand.waiting else 0)
    if autoscaling.min_replicas > 0 or (idle_since := _idle_since(observed, last_request, conditions)) is None:
        return OwnNumber(None)
    left_s = (idle_since + timedelta(seconds=autoscaling.idle_seconds) - now).total_seconds()
    return OwnNumber(0) if left_s <= 0 else OwnNumber(None, left_s)


def _idle_since(observed: Observed, last_request: datetime | None, conditions: Sequence[Condition]) -> datetime | None:
    """The time since which the pair has a ready server, or one that has not become ready in time, and no requests; None
    if it is in use, or if that is unknown because no gateway reports. A server that is loading was started for a
    request."""
    ready, rolling = (find(conditions, type) for type in (ConditionType.READY, ConditionType.PROGRESSING))
    is_late = rolling is not None and rolling.reason == Reason.DEADLINE_EXCEEDED
    since = ready if ready is not None and ready.status == "True" else rolling if is_late else None
    if since is None or not observed.gateways.total or observed.demand.in_use:
        return None
    moments = [read_time(since.last_transition_time)]
    if last_request is not None:
        moments.append(last_request - timedelta(seconds=LATELY_S))
    return max((moment for moment in moments if moment is not None), default=None)
