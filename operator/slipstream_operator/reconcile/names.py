"""The reservation of a model name. Pure.

After its pair is deleted, a name stays reserved for the pair's namespace for a while, so that the pair can be created
again. The reservation is stored in the status of the pairs of other namespaces that wait for the name. Gateways respect
it, and it survives a restart of the operator.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from slipstream_core.manifest.objects import ModelPair
from slipstream_core.manifest.status import NameHolder

from slipstream_operator.status.conditions import read_time, rfc3339
from slipstream_operator.types import NameClaim

KEPT_FOR = timedelta(minutes=10)
_LOOK_AGAIN_S = 1.0


def name_holder(pair: ModelPair, claim: NameClaim, now: datetime) -> NameHolder | None:
    """The holder of the name that `pair` waits for, for its status; None if no other namespace has the name."""
    model, namespace = pair.spec.model, pair.metadata.namespace
    if claim.served_by is not None:
        return None if claim.served_by == namespace else NameHolder(model=model, namespace=claim.served_by)
    held = claim.holder
    if held is None or held.namespace == namespace:
        return None
    until = (read_time(held.until) if held.until is not None else None) or now + KEPT_FOR
    return NameHolder(model=model, namespace=held.namespace, until=rfc3339(until)) if now < until else None


def look_for_name_s(
    before: NameHolder | None, after: NameHolder | None, claim: NameClaim | None, now: datetime
) -> float | None:
    """The seconds until the next reconcile if the status has the holder `after` from now on. `claim` None: the pair
    waits for no name."""
    if before != after:
        return 0.0  # this pair and others are checked against the new holder
    until = read_time(after.until) if after is not None and after.until is not None else None
    if until is not None:
        return (until - now).total_seconds()
    # another waiting pair still has the reservation in its status
    return _LOOK_AGAIN_S if after is None and claim is not None and claim.served_by is None else None
