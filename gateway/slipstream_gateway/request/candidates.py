"""The servers that may run a request, in order of preference. This module neither waits nor does I/O."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import msgspec
from slipstream_core.manifest.table import Backend
from slipstream_core.types import Arm, Capability, Decision, GenerationRequest, Reason, speculation_of

from slipstream_gateway.fleet.snapshot import ServedRoute
from slipstream_gateway.upstreams.base import Stream
from slipstream_gateway.upstreams.pool import Batch, Pool, Replica

MAX_ATTEMPTS = 4
IsKilled = Callable[[], bool]


class Candidate(NamedTuple):
    """A server to try, the route and the manifest's entry of its arm, and the decision for an answer from it."""

    replica: Replica
    served: ServedRoute
    backend: Backend
    decision: Decision


class _Arm(NamedTuple):
    """The servers of one arm. Replicas without the capability that the request `needs` are never tried."""

    served: ServedRoute
    pool: Pool
    backend: Backend
    decision: Decision
    needs: Capability | None = None

    def pick(self, tried: Sequence[Replica], request: GenerationRequest, *, is_needed: bool = True) -> Replica | None:
        """A replica that was not `tried`, as `Pool.pick` chooses it."""
        key = self.pool.key_for(request)
        return self.pool.pick(tried, self.needs, key=key, adapter=self.served.adapter, is_needed=is_needed)

    def at(self, replica: Replica) -> Candidate:
        return Candidate(replica, self.served, self.backend, self.decision)


def canary_candidates(
    served: ServedRoute, decision: Decision, request: GenerationRequest, is_killed_now: IsKilled
) -> Iterator[Candidate]:
    """The available server of the new revision beside `served` with the least work, if any. If it fails, the servers of
    `served` take over. The draft of the new revision may be shorter."""
    canary = served.route.canary
    if canary is None or served.canary is None:
        return
    most = canary.route.pair.spec.max_draft_tokens
    decision = msgspec.structs.replace(
        decision, revision=canary.revision, draft_length=min(decision.draft_length, most)
    )
    for arm in _arms(served.canary, decision, request, is_killed_now):
        replica = None if _is_barred(arm, is_killed_now) else arm.pick((), request, is_needed=False)
        if replica is not None:
            yield arm.at(replica)
            return


def first_candidates(
    served: ServedRoute,
    decision: Decision,
    request: GenerationRequest,
    is_killed_now: IsKilled,
    spared: Collection[Replica] = (),
) -> Iterator[Candidate]:
    """The servers to try before the first byte, in this order: the available servers of the decided arm, the available
    servers of the plain arm, then the servers of the plain arm that are known to be down, as they may be back. Each
    server is tried once. At last the failed servers are tried again, because a network that breaks connections also
    breaks those of healthy servers.

    A kill switch that is turned on between two attempts ends those on the speculative arm. `spared` has the servers
    that failed for reasons of their own: they may be tried on another arm, but not again on the same one. The caller
    may add servers meanwhile.
    """
    tried: list[Replica] = []
    count = 0
    arm: _Arm | None = None
    for arm in _arms(served, decision, request, is_killed_now):
        tried = [replica for replica in tried if replica not in spared]
        while not _is_barred(arm, is_killed_now):
            if count == MAX_ATTEMPTS or (replica := arm.pick(tried, request)) is None:
                break
            tried.append(replica)
            count += 1
            yield arm.at(replica)
    if arm is None or _is_barred(arm, is_killed_now):
        return
    for replica in _left(arm, tried):
        if count == MAX_ATTEMPTS:
            return
        count += 1
        yield arm.at(replica)
    if len(arm.pool.replicas) > 1:
        again = [replica for replica in _able(arm) if replica not in spared]
        for replica in again[: MAX_ATTEMPTS - count]:
            yield arm.at(replica)


def resume_candidates(
    served: ServedRoute, decision: Decision, request: GenerationRequest, broken: Replica, is_killed_now: IsKilled
) -> Iterator[Candidate]:
    """The servers for a stream that `broken` interrupted, each once: the available servers of an arm, those known to be
    down, and last `broken` itself, which may be back or have failed only once.

    An answer resumes plainly: the tokens are the same, and a draft that broke the stream cannot break it again. Without
    a plain server it resumes with drafts.
    """
    tried = [broken]
    for arm in _resume_arms(served, decision, request, is_killed_now):
        while not _is_barred(arm, is_killed_now):
            replica = arm.pick(tried, request) or next(iter(_left(arm, tried)), None)
            if replica is None:
                break
            tried.append(replica)
            yield arm.at(replica)
    for arm in _resume_arms(served, decision, request, is_killed_now):
        if broken in _able(arm) and not _is_barred(arm, is_killed_now):
            yield arm.at(broken)
            return


def has_elsewhere(served: ServedRoute, replica: Replica) -> bool:
    """Whether another server, available or not, could take over a request that runs on `replica`."""
    if served.fallback is not None and replica in served.fallback.replicas:
        return len(served.fallback.replicas) > 1
    pools = (served.plain,) if served.speculative is None else (served.plain, served.speculative)
    return any(
        other is not replica and other not in pool.lacking(served.adapter) for pool in pools for other in pool.replicas
    )


def _left(arm: _Arm, tried: Sequence[Replica]) -> list[Replica]:
    """The servers that `pick` omits because they are known to be down, ordered by their next permitted attempt."""
    return [replica for replica in _able(arm) if replica not in tried]


def _able(arm: _Arm) -> list[Replica]:
    """The servers with the capability and the adapter that the request needs, ordered by their next permitted
    attempt."""
    lacking = arm.pool.lacking(arm.served.adapter)
    return [
        replica for replica in arm.pool.by_return() if not replica.why_withheld(arm.needs) and replica not in lacking
    ]


def _is_barred(arm: _Arm, is_killed_now: IsKilled) -> bool:
    """Whether a kill switch forbids the arm now."""
    return arm.decision.arm is Arm.SPECULATIVE and is_killed_now()


def _arms(
    served: ServedRoute, decision: Decision, request: GenerationRequest, is_killed_now: IsKilled
) -> Iterator[_Arm]:
    route = served.route
    if decision.arm is Arm.SPECULATIVE:
        if route.speculative is not None and served.speculative is not None:
            yield _Arm(served, served.speculative, route.speculative, decision, speculation_of(request))
            if route.plain_for(request.features).capabilities.missing(request.features):
                return
        decision = _fallen_back(served, decision, request, killed=is_killed_now())
    yield _plain_arm(served, decision, request)


def _plain_arm(served: ServedRoute, decision: Decision, request: GenerationRequest) -> _Arm:
    """The servers that decode `request` plainly."""
    backend = served.route.plain_for(request.features)
    if served.fallback is not None and backend is served.route.fallback:
        return _Arm(served, served.fallback, backend, decision)
    return _Arm(served, served.plain, served.route.plain, decision)


def _resume_arms(
    served: ServedRoute, decision: Decision, request: GenerationRequest, is_killed_now: IsKilled
) -> Iterator[_Arm]:
    route = served.route
    if decision.arm is not Arm.SPECULATIVE:
        yield _plain_arm(served, decision, request)
        return
    drafting = None
    if route.speculative is not None and served.speculative is not None:  # otherwise a new manifest has no draft
        drafting = _Arm(served, served.speculative, route.speculative, decision, speculation_of(request))
    if not route.plain.capabilities.missing(request.features):
        fallen_back = _fallen_back(served, decision, request, killed=is_killed_now())
        yield _Arm(served, served.plain, route.plain, fallen_back)
    if drafting is not None:
        yield drafting


def _fallen_back(served: ServedRoute, decision: Decision, request: GenerationRequest, *, killed: bool) -> Decision:
    reason, detail = Reason.SPECULATIVE_UNAVAILABLE, "no server of the speculative arm could take the request"
    withheld = served.speculative.withheld(speculation_of(request)) if served.speculative is not None else None
    if withheld is not None:
        reason, detail = withheld.reason, withheld.detail
    if killed:
        reason, detail = Reason.KILL_SWITCH, "a kill switch was turned on while the request waited for a server"
    return msgspec.structs.replace(
        decision, arm=Arm.PLAIN, reason=reason, draft_length=0, adaptive=False, detail=detail
    )


class Attempt:
    """Acquires a slot on construction; `close` cancels the upstream's work and releases the slot. `batch` is the mean
    load that the attempt shared; `close` sets it."""

    __slots__ = ("_released", "_since", "_stops", "backend", "batch", "decision", "replica", "stream")

    def __init__(self, candidate: Candidate) -> None:
        self.replica: Replica = candidate.replica
        self.backend = candidate.backend
        self.decision = candidate.decision
        self.stream: Stream | None = None
        self.batch = Batch(1.0, 0.0)
        self._released = False
        self._stops = self.replica.stops
        self._since = self.replica.acquire(
            self.decision.step_draft_tokens, time.perf_counter(), unconditional=self.decision.unconditional
        )

    @property
    def was_stopped(self) -> bool:
        """Whether the server got the command to stop drafting during the attempt."""
        return self.decision.draft_length > 0 and self.replica.stops != self._stops

    def began(self, stream: Stream | None) -> None:
        """Records the arrival of the first piece of `stream`; None: of the whole answer."""
        self.stream = stream
        ttft_s = None if stream is None else time.perf_counter() - self._since.time_s
        self.replica.succeeded(time.monotonic(), speculative=self.decision.draft_length > 0, ttft_s=ttft_s)

    def completed(self) -> None:
        """Records that the answer reached its regular end."""
        self.replica.completed(time.monotonic(), speculative=self.decision.draft_length > 0)

    def failed(self, cause: str) -> None:
        """Records a failure caused by the server, before the first byte or after it; see `Replica.failed`."""
        self.replica.failed(time.monotonic(), cause, speculative=self.decision.draft_length > 0)

    async def close(self) -> None:
        """Cancels the upstream's work if it still runs, and releases the slot. Closing twice is harmless."""
        stream, self.stream = self.stream, None
        try:
            if stream is not None:
                await stream.aclose()
        finally:
            if not self._released:
                self._released = True
                decision = self.decision
                until = self.replica.release(
                    decision.step_draft_tokens, time.perf_counter(), unconditional=decision.unconditional
                )
                self.batch = Batch.between(self._since, until, draft_length=decision.step_draft_tokens)
