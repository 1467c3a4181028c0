"""Where a request may go: the arms and replicas to try, in order. Nothing here waits or speaks to a server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import msgspec
from slipstream_core.manifest.table import Backend
from slipstream_core.types import Arm, Capability, Decision, GenerationRequest, Reason, speculation_of

from slipstream_gateway.fleet.fleet import ServedRoute
from slipstream_gateway.upstreams.pool import Pool, Replica

MAX_ATTEMPTS = 4
IsKilled = Callable[[], bool]


class Leg(NamedTuple):
    """One arm to try: its replicas, what the manifest says of them, and the decision that the answer would carry.
    A replica without the capability that the leg `needs` is never tried."""

    pool: Pool
    backend: Backend
    decision: Decision
    needs: Capability | None = None


def first_attempts(
    served: ServedRoute,
    decision: Decision,
    request: GenerationRequest,
    is_killed_now: IsKilled,
    spared: Collection[Replica] = (),
) -> Iterator[tuple[Leg, Replica]]:
    """Replicas to try, in order: those of the decided arm that are up, those of the plain arm that are, then those of
    the plain arm that are known to be down: they may be back, and there is nothing to lose. Each server once; at last
    those that were lost are tried again, as a network that breaks connections breaks those of servers that are up.

    A kill switch that is turned on between two attempts ends those on the speculative arm. `spared`, to which the
    caller may add meanwhile, are servers that failed by themselves: another arm of theirs may work.
    """
    tried: list[Replica] = []
    count = 0
    leg: Leg | None = None
    for leg in _legs(served, decision, request, is_killed_now):
        tried = [replica for replica in tried if replica not in spared]
        while not _is_barred(leg, is_killed_now):
            if count == MAX_ATTEMPTS or (replica := leg.pool.pick(tried, leg.needs)) is None:
                break
            tried.append(replica)
            count += 1
            yield leg, replica
    if leg is None or _is_barred(leg, is_killed_now):
        return
    for replica in _left(leg, tried):
        if count == MAX_ATTEMPTS:
            return
        count += 1
        yield leg, replica
    if len(leg.pool.replicas) > 1:
        again = [replica for replica in _able(leg) if replica not in spared]
        for replica in again[: MAX_ATTEMPTS - count]:
            yield leg, replica


def next_attempts(
    served: ServedRoute, decision: Decision, request: GenerationRequest, broken: Replica, is_killed_now: IsKilled
) -> Iterator[tuple[Leg, Replica]]:
    """Where a stream may go on that `broken` broke off, each server once: those of an arm that are up, those that are
    known to be down, and last `broken` itself, which may be back, or have failed this once.

    Greedy answers go on plainly: the tokens are the same, and a draft that broke a stream cannot break it again; where
    no plain server is left, they draft on. A sampled one is the same only where as many tokens are drafted as before,
    so that it stays on its arm while it can.
    """
    tried = [broken]
    for leg in _next_legs(served, decision, request, is_killed_now):
        while not _is_barred(leg, is_killed_now):
            replica = leg.pool.pick(tried, leg.needs) or next(iter(_left(leg, tried)), None)
            if replica is None:
                break
            tried.append(replica)
            yield leg, replica
    for leg in _next_legs(served, decision, request, is_killed_now):
        if broken in _able(leg) and not _is_barred(leg, is_killed_now):
            yield leg, broken
            return


def has_elsewhere(served: ServedRoute, replica: Replica) -> bool:
    """Whether another server could take what runs at `replica`, up or not."""
    if served.fallback is not None and replica in served.fallback.replicas:
        return len(served.fallback.replicas) > 1
    pools = (served.plain,) if served.speculative is None else (served.plain, served.speculative)
    return any(other is not replica for pool in pools for other in pool.replicas)


def _left(leg: Leg, tried: Sequence[Replica]) -> list[Replica]:
    """Those that nobody would pick, as they are known to be down; who is due first, first."""
    return [replica for replica in _able(leg) if replica not in tried]


def _able(leg: Leg) -> list[Replica]:
    """Those that have what the leg needs; who may be tried first, first."""
    return [replica for replica in leg.pool.by_return() if not replica.why_withheld(leg.needs)]


def _is_barred(leg: Leg, is_killed_now: IsKilled) -> bool:
    """Whether a kill switch forbids the leg by now."""
    return leg.decision.arm is Arm.SPECULATIVE and is_killed_now()


def _legs(
    served: ServedRoute, decision: Decision, request: GenerationRequest, is_killed_now: IsKilled
) -> Iterator[Leg]:
    route = served.route
    if decision.arm is Arm.SPECULATIVE and route.speculative is not None and served.speculative is not None:
        yield Leg(served.speculative, route.speculative, decision, speculation_of(request))
        if route.plain_for(request.features).capabilities.missing(request.features):
            return
        decision = _fallen_back(served, decision, request, killed=is_killed_now())
    yield _plain_leg(served, decision, request)


def _plain_leg(served: ServedRoute, decision: Decision, request: GenerationRequest) -> Leg:
    """The servers that decode `request` plainly."""
    backend = served.route.plain_for(request.features)
    if served.fallback is not None and backend is served.route.fallback:
        return Leg(served.fallback, backend, decision)
    return Leg(served.plain, served.route.plain, decision)


def _next_legs(
    served: ServedRoute, decision: Decision, request: GenerationRequest, is_killed_now: IsKilled
) -> Iterator[Leg]:
    route = served.route
    if decision.arm is not Arm.SPECULATIVE:
        yield _plain_leg(served, decision, request)
        return
    drafting = None
    if route.speculative is not None and served.speculative is not None:  # else a manifest took the draft meanwhile
        drafting = Leg(served.speculative, route.speculative, decision, speculation_of(request))
    goes_plainly = not route.plain.capabilities.missing(request.features)
    if drafting is not None and (request.temperature > 0 or not goes_plainly):
        yield drafting
    if goes_plainly:
        fallen_back = _fallen_back(served, decision, request, killed=is_killed_now())
        yield Leg(served.plain, route.plain, fallen_back)
        if drafting is not None and request.temperature <= 0:
            yield drafting


def _fallen_back(served: ServedRoute, decision: Decision, request: GenerationRequest, *, killed: bool) -> Decision:
    reason, detail = Reason.SPECULATIVE_UNAVAILABLE, "no server of the speculative arm could take the request"
    withheld = served.speculative.withheld(speculation_of(request)) if served.speculative is not None else None
    if withheld is not None:
        reason, detail = withheld.reason, withheld.detail
    if killed:
        reason, detail = Reason.KILL_SWITCH, "a kill switch was turned on while the request waited for a server"
    return msgspec.structs.replace(decision, arm=Arm.PLAIN, reason=reason, draft_length=0, detail=detail)
