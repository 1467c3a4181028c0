"""The next server for a request, by its plan and by what became of its attempts so far. This module neither waits nor
does I/O, and holds no state: `next_candidate` has one table of cases for failover, resumption, canary and kill."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec
from slipstream_core.errors import RequestError, SlipstreamError, UpstreamFailed
from slipstream_core.manifest.table import Backend
from slipstream_core.types import Arm, Capability, Decision, GenerationRequest, Reason, speculation_of

from slipstream_gateway.fleet.snapshot import ServedRoute
from slipstream_gateway.request.query_of_death import MAX_RUNS
from slipstream_gateway.upstreams.base import Stream
from slipstream_gateway.upstreams.pool import Batch, Pool, Replica

MAX_ATTEMPTS = 4
MAX_RESUMPTIONS = 3


class Candidate(msgspec.Struct, frozen=True):
    """A server to try, the route and the manifest's entry of its arm, and the decision for an answer from it."""

    replica: Replica
    served: ServedRoute
    backend: Backend
    decision: Decision


class _Arm(msgspec.Struct, frozen=True):
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


class Result(StrEnum):
    """The result of a resumption. `NOT_RESUMABLE`: because of the request, its server or the policy."""

    RESUMED = "resumed"
    NOT_RESUMABLE = "not_resumable"
    NO_SERVER = "no_server"
    NO_BUDGET = "no_budget"
    TOO_OFTEN = "too_often"


class Plan(msgspec.Struct, frozen=True):
    """A decided request and its servers. `to_canary`: the draw sends it to the new revision beside `served`."""

    served: ServedRoute
    decision: Decision
    request: GenerationRequest
    to_canary: bool = False


class Tried(NamedTuple):
    """A failed attempt. `failed_itself`: the server failed for a reason of its own, so that it may be tried on another
    arm, but not again on the same one."""

    candidate: Candidate
    failed_itself: bool = False

    @classmethod
    def of(cls, candidate: Candidate, failure: SlipstreamError | None) -> Tried:
        return cls(candidate, isinstance(failure, UpstreamFailed))


class Sent(msgspec.Struct, frozen=True):
    """What became of a request so far. `tried` has its failed attempts before the first byte; for a stream that
    `broken` interrupted, those of the present round of its resumption. `runs` is `Call.runs`, `resumed` the number of
    its resumptions. `is_resumable`: what the client has suffices for a resumption. `is_carried`: a proxy sends the
    request, once. `is_over`: its time is over. `is_killed`: a kill switch of the pair is on now."""

    tried: Sequence[Tried] = ()
    broken: Candidate | None = None
    runs: int = 0
    resumed: int = 0
    is_resumable: bool = True
    is_carried: bool = False
    is_over: bool = False
    is_killed: bool = False


def next_candidate(plan: Plan, sent: Sent, failure: SlipstreamError | None = None) -> Candidate | Result:
    """The server to try next, after the last attempt ended with `failure`, or the reason why there is none."""
    if sent.broken is None:
        if failure is not None and (sent.is_carried or sent.is_over or sent.runs >= MAX_RUNS):
            return Result.TOO_OFTEN
        return _first(plan, sent.tried, is_killed=sent.is_killed) or Result.NO_SERVER
    if not sent.is_resumable or isinstance(failure, RequestError):  # no other server would accept the request either
        return Result.NOT_RESUMABLE
    if sent.resumed >= MAX_RESUMPTIONS or sent.runs >= MAX_RUNS:
        return Result.TOO_OFTEN
    return _continuation(plan, sent.tried, sent.broken, is_killed=sent.is_killed) or Result.NO_SERVER


def _first(plan: Plan, tried: Sequence[Tried], *, is_killed: bool) -> Candidate | None:
    """The server to try before the first byte: one of a new revision, if the draw sends the request there. If it does
    not give the answer, the answer is an ordinary one of the serving revision. Then, in this order: the available
    servers of the decided arm, the available servers of the plain arm, and the servers of the plain arm that are known
    to be down, as they may be back. Each server is tried once. At last the failed servers are tried again, because a
    network that breaks connections also breaks those of healthy servers.

    A kill switch that is turned on between two attempts ends those on the speculative arm.
    """
    if plan.to_canary and not tried and (of_canary := _of_new_revision(plan, is_killed=is_killed)) is not None:
        return of_canary
    tried = [one for one in tried if not one.candidate.decision.revision]
    if len(tried) >= MAX_ATTEMPTS:
        return None
    arm: _Arm | None = None
    for arm in _arms(plan.served, plan.decision, plan.request, is_killed=is_killed):
        if _is_barred(arm, is_killed=is_killed) or any(_is_later(one, arm) for one in tried):
            continue
        spent = [one.candidate.replica for one in tried if not one.failed_itself or _is_of(one, arm)]
        if (replica := arm.pick(spent, plan.request)) is not None:
            return arm.at(replica)
    if arm is None or _is_barred(arm, is_killed=is_killed):
        return None
    return next(_again(arm, tried), None)


def _again(arm: _Arm, tried: Sequence[Tried]) -> Iterator[Candidate]:
    """The servers of the last `arm` that `pick` omits: those known to be down, then those that were tried once."""
    spent = [one.candidate.replica for one in tried if not one.failed_itself or _is_of(one, arm)]
    yield from map(arm.at, _left(arm, spent))
    if len(arm.pool.replicas) > 1:
        replicas = [one.candidate.replica for one in tried]
        ill = [one.candidate.replica for one in tried if one.failed_itself]
        yield from (arm.at(replica) for replica in _able(arm) if replica not in ill and replicas.count(replica) < 2)


def _is_of(tried: Tried, arm: _Arm) -> bool:
    return (tried.candidate.decision.arm is Arm.SPECULATIVE) == (arm.decision.arm is Arm.SPECULATIVE)


def _is_later(tried: Tried, arm: _Arm) -> bool:
    """Whether the attempt was on an arm after `arm`, which is then over."""
    return arm.decision.arm is Arm.SPECULATIVE and not _is_of(tried, arm)


def _of_new_revision(plan: Plan, *, is_killed: bool) -> Candidate | None:
    """The available server of the new revision with the least work, if any. Its draft may be shorter."""
    canary, served = plan.served.route.canary, plan.served.canary
    if canary is None or served is None:
        return None
    most = canary.route.pair.spec.max_draft_tokens
    decision = msgspec.structs.replace(
        plan.decision, revision=canary.revision, draft_length=min(plan.decision.draft_length, most)
    )
    for arm in _arms(served, decision, plan.request, is_killed=is_killed):
        replica = None if _is_barred(arm, is_killed=is_killed) else arm.pick((), plan.request, is_needed=False)
        if replica is not None:
            return arm.at(replica)
    return None


def _continuation(plan: Plan, tried: Sequence[Tried], broken: Candidate, *, is_killed: bool) -> Candidate | None:
    """The server to try for a stream that `broken` interrupted, each once: the available servers of an arm, those known
    to be down, and last the server of `broken` itself, which may be back or have failed only once.

    An answer resumes plainly: the tokens are the same, and a draft that broke the stream cannot break it again. Without
    a plain server it resumes with drafts.
    """
    spent = [broken.replica, *(one.candidate.replica for one in tried)]
    arms = [
        arm
        for arm in _resume_arms(plan.served, broken.decision, plan.request, is_killed=is_killed)
        if not _is_barred(arm, is_killed=is_killed)
    ]
    for arm in arms:
        replica = arm.pick(spent, plan.request) or next(iter(_left(arm, spent)), None)
        if replica is not None:
            return arm.at(replica)
    able = (arm.at(broken.replica) for arm in arms if broken.replica in _able(arm))
    return next(able, None) if spent.count(broken.replica) == 1 else None


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


def _is_barred(arm: _Arm, *, is_killed: bool) -> bool:
    """Whether a kill switch forbids the arm."""
    return arm.decision.arm is Arm.SPECULATIVE and is_killed


def _arms(served: ServedRoute, decision: Decision, request: GenerationRequest, *, is_killed: bool) -> Iterator[_Arm]:
    route = served.route
    if decision.arm is Arm.SPECULATIVE:
        if route.speculative is not None and served.speculative is not None:
            yield _Arm(served, served.speculative, route.speculative, decision, speculation_of(request))
            if route.plain_for(request.features).capabilities.missing(request.features):
                return
        decision = _fallen_back(served, decision, request, killed=is_killed)
    yield _plain_arm(served, decision, request)


def _plain_arm(served: ServedRoute, decision: Decision, request: GenerationRequest) -> _Arm:
    """The servers that decode `request` plainly."""
    backend = served.route.plain_for(request.features)
    if served.fallback is not None and backend is served.route.fallback:
        return _Arm(served, served.fallback, backend, decision)
    return _Arm(served, served.plain, served.route.plain, decision)


def _resume_arms(
    served: ServedRoute, decision: Decision, request: GenerationRequest, *, is_killed: bool
) -> Iterator[_Arm]:
    route = served.route
    if decision.arm is not Arm.SPECULATIVE:
        yield _plain_arm(served, decision, request)
        return
    drafting = None
    if route.speculative is not None and served.speculative is not None:  # otherwise a new manifest has no draft
        drafting = _Arm(served, served.speculative, route.speculative, decision, speculation_of(request))
    if not route.plain.capabilities.missing(request.features):
        fallen_back = _fallen_back(served, decision, request, killed=is_killed)
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
    load that the attempt shared; `close` sets it. `key` is the public id of the request's API key."""

    __slots__ = ("_key", "_released", "_since", "_stops", "backend", "batch", "decision", "replica", "served", "stream")

    def __init__(self, candidate: Candidate, key: str = "") -> None:
        self._key = key
        self.replica: Replica = candidate.replica
        self.served = candidate.served
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
        self.replica.completed(time.monotonic(), speculative=self.decision.draft_length > 0, key=self._key)

    def failed(self, cause: str, *, broke: bool = False) -> None:
        """Records a failure caused by the server, before the first byte or after it; see `Replica.failed`."""
        speculative = self.decision.draft_length > 0
        self.replica.failed(time.monotonic(), cause, speculative=speculative, key=self._key, broke=broke)

    async def close(self) -> None:
        """Cancels the upstream's work if it still runs, and releases the slot. Closing twice is harmless."""
        stream, self.stream = self.stream, None
        try:
            if stream is not None:
                await stream.aclose()
        finally:
            self.release()

    def release(self) -> None:
        """Releases the slot. A second call does nothing."""
        if self._released:
            return
        self._released = True
        decision = self.decision
        until = self.replica.release(
            decision.step_draft_tokens, time.perf_counter(), unconditional=decision.unconditional
        )
        self.batch = Batch.between(self._since, until, draft_length=decision.step_draft_tokens)
