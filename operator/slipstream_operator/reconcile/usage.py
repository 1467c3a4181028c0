"""The use of a pair by clients, and the reservation of a model name. Pure.

A rename of a pair's model waits until clients stop using the old name. After a pair is deleted, its name stays reserved
for its namespace for a while, so that the pair can be created again. The reservation is stored in the status of the
pairs of other namespaces that wait for the name. Gateways respect it, and it survives a restart of the operator.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from slipstream_core.manifest.check import show
from slipstream_core.manifest.model_pair import ModelPair
from slipstream_core.manifest.status import ModelPairStatus, NameHolder
from slipstream_core.manifest.versions import ALLOW_RENAME, Rename

from slipstream_operator.status.conditions import read_time, rfc3339
from slipstream_operator.types import NameClaim, Note

DELETED_IN_USE = "DeletedInUse"
IN_USE_FOR = timedelta(minutes=5)
_LOOK_EVERY = timedelta(minutes=1)
NAME_KEPT_FOR = timedelta(minutes=10)
_LOOK_AGAIN_S = 1.0


class Usage(NamedTuple):
    """`last_request` is None without any request. `next_look_s` is the time until `in_use` may change, None if only a
    request changes it."""

    last_request: datetime | None
    in_use: bool
    next_look_s: float | None

    @property
    def last_request_time(self) -> str | None:
        """The time of the last request, rounded to the minute, so that a status is not written for every request."""
        return None if self.last_request is None else rfc3339(self.last_request.replace(second=0, microsecond=0))


def usage_of(prior: ModelPairStatus, seen: datetime | None, now: datetime) -> Usage:
    """The use of a pair, from the last request in its status, which outlives gateways and operator, and from the last
    request `seen` by a gateway."""
    stored = read_time(prior.last_request_time) if prior.last_request_time is not None else None
    moments = [min(moment, now) for moment in (stored, seen) if moment is not None]
    last = max(moments, default=None)
    if last is None or now - last >= IN_USE_FOR:
        return Usage(last, False, None)
    return Usage(last, True, min(last + IN_USE_FOR - now, _LOOK_EVERY).total_seconds())


def deleted_in_use(model: str | None, usage: Usage) -> Note:
    """The note about a pair that was deleted in use; `model` is its name for clients, where it is known."""
    message = (
        f"the pair was deleted while clients requested its model {show(model)}, last at {usage.last_request_time}: "
        "new requests get 404, running answers continue for as long as their servers run"
    )
    return Note(type="Warning", reason=DELETED_IN_USE, message=message)


def name_in_use(rename: Rename, usage: Usage) -> str:
    """The reason why the rename waits."""
    minutes = IN_USE_FOR // timedelta(minutes=1)
    return (
        f"spec.model: clients still request {show(rename.old)}, last at {usage.last_request_time}; it becomes "
        f"{show(rename.new)} after {minutes} minutes without a request, or at once by the annotation {ALLOW_RENAME}: "
        f"{show(rename.new)}. Until then the previous spec is served"
    )


def name_holder(pair: ModelPair, claim: NameClaim, now: datetime) -> NameHolder | None:
    """The holder of the name that `pair` waits for, for its status; None if no other namespace has the name."""
    model, namespace = pair.spec.model, pair.metadata.namespace
    if claim.served_by is not None:
        return None if claim.served_by == namespace else NameHolder(model=model, namespace=claim.served_by)
    held = claim.holder
    if held is None or held.namespace == namespace:
        return None
    until = (read_time(held.until) if held.until is not None else None) or now + NAME_KEPT_FOR
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
