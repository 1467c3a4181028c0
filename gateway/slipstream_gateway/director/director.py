"""One request from decision to last byte: tries replicas and arms before the first byte, measures after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import msgspec

from slipstream_gateway.director.admission import Admission
from slipstream_gateway.director.exchange import Exchange, rejection
from slipstream_gateway.director.fleet import Fleet, ServedRoute, Snapshot
from slipstream_gateway.director.observing import Learner, Lesson, Outcomes, key_id_of
from slipstream_gateway.director.outcome import Observer
from slipstream_gateway.director.parity import Parity
from slipstream_gateway.director.watchdog import Watchdog
from slipstream_gateway.errors import ModelNotFound, Overloaded, SlipstreamError, UpstreamError, UpstreamUnavailable
from slipstream_gateway.manifest.table import Backend, Route
from slipstream_gateway.measurement import Draws, Forecast, Subject
from slipstream_gateway.routing import NO_DRAWS, Health, decide, draws_of
from slipstream_gateway.settings import Deadlines
from slipstream_gateway.types import Arm, Decision, GenerationRequest, Reason, RequestProfile
from slipstream_gateway.upstreams.base import Completion, Job, Stream
from slipstream_gateway.upstreams.pool import Pool, Replica

MAX_ATTEMPTS = 4
_RETRY_INCOMPLETE_S = 5.0
_UP, _DOWN = Health(), Health(speculative_available=False)


class Classifier(Protocol):
    """Says what to expect of a request. Pure and quick."""

    def classify(self, request: GenerationRequest) -> RequestProfile: ...

    def explain(self, request: GenerationRequest) -> RequestProfile:
        """The same profile with its evidence, which takes longer to gather."""
        ...


class Context(NamedTuple):
    """What came with a request besides its body. `authorization` goes to HTTP upstreams as it came."""

    request_id: str
    authorization: str | None = None
    traceparent: str | None = None


class Explanation(NamedTuple):
    """A decision with what it was made from, without running the request."""

    pair: str
    profile: RequestProfile
    decision: Decision


class Leg(NamedTuple):
    """One arm to try: its replicas, what the manifest says of them, and the decision that the answer would carry."""

    pool: Pool
    backend: Backend
    decision: Decision


class _Judged(NamedTuple):
    """A decision with what it was made from."""

    profile: RequestProfile
    subject: Subject
    decision: Decision


class Director:
    """Owns nothing but the wiring; state lives in the fleet, the admission, the learner and the observer."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        classifier: Classifier,
        admission: Admission,
        observer: Observer,
        deadlines: Deadlines,
        learner: Learner,
        outcomes: Outcomes,
        parity: Parity,
    ) -> None:
        self.fleet = fleet
        self.admission = admission
        self._classifier = classifier
        self._observer = observer
        self._deadlines = deadlines
        self._learner = learner
        self._outcomes = outcomes
        self._parity = parity

    def explain(
        self, request: GenerationRequest, *, authorization: str | None = None, request_id: str | None = None
    ) -> Explanation:
        """The decision for `request`; without an id of its own, chance has no part in it.

        Raises `ModelNotFound`, `UnsupportedParameter` or `InvalidRequest`.
        """
        served = _served(self.fleet.current, request)
        draws = NO_DRAWS if request_id is None else draws_of(request_id)
        judged = self._decide(request, served, authorization, draws)
        return Explanation(served.route.pair.metadata.key, self._classifier.explain(request), judged.decision)

    async def run(self, request: GenerationRequest, context: Context) -> Exchange:
        """Starts `request` and returns when its first piece (or, not streamed, its whole answer) is here.

        The caller closes the exchange. Raises `RequestError`, `Overloaded` or `UpstreamError`; nothing has been
        promised to the client by then.
        """
        started_s = time.perf_counter()
        await self._enter()
        try:
            snapshot = self.fleet.enter()
        except BaseException:
            self.admission.leave()
            raise
        exchange = Exchange(
            request=request,
            started_s=started_s,
            watchdog=Watchdog(total_s=self._deadlines.total_s),
            deadlines=self._deadlines,
            on_close=lambda: self._leave(snapshot),
        )
        try:
            await self._start(exchange, snapshot, context)
        except BaseException as exc:  # also a client that left: every way out is recorded, then goes on
            if isinstance(exc, SlipstreamError) and not exchange.is_decided:
                self._observer.rejected(rejection(exc))
            await exchange.fail(exc)
            raise
        return exchange

    async def _enter(self) -> None:
        if self.admission.try_enter():
            return
        try:
            await self.admission.enter()
        except Overloaded as exc:
            self._observer.rejected(rejection(exc))
            raise

    def _leave(self, snapshot: Snapshot) -> None:
        self.fleet.leave(snapshot)
        self.admission.leave()

    def _decide(
        self, request: GenerationRequest, served: ServedRoute, authorization: str | None, draws: Draws
    ) -> _Judged:
        profile = self._classifier.classify(request)
        route, learner = served.route, self._learner
        subject = learner.subject(request, profile, pair=route.pair.metadata.key, key_id=key_id_of(authorization))
        target = served.speculative.least_busy() if served.speculative is not None else None
        forecast = None
        if target is not None and _is_forecast(route):
            forecast = self._forecast(request, profile, subject, served, target)
        decision = decide(
            request,
            profile,
            route,
            forecast=forecast,
            draws=draws,
            health=_DOWN if served.speculative is not None and target is None else _UP,
        )
        return _Judged(profile, subject, decision)

    def _forecast(
        self,
        request: GenerationRequest,
        profile: RequestProfile,
        subject: Subject,
        served: ServedRoute,
        target: Replica,
    ) -> Forecast:
        """What to expect at the present load; `target` is where the request would speculate."""
        route, plain = served.route, served.plain.least_busy()
        return self._learner.forecast(
            subject,
            profile,
            plain_pool=route.plain.pool,
            speculative_pool=route.speculative.pool if route.speculative is not None else None,
            plain_load=plain.outstanding + 1.0 if plain is not None else 1.0,
            speculative_load=target.outstanding + 1.0,
            neighbours_draft_length=target.standing_draft_lengths / (target.outstanding + 1.0),
            prompt_tokens=profile.prompt_tokens,
            max_tokens=request.max_tokens,
            temperature=request.temperature,
        )

    async def _start(self, exchange: Exchange, snapshot: Snapshot, context: Context) -> None:
        request = exchange.request
        served = _served(snapshot, request)
        draws = draws_of(context.request_id)
        judged = self._decide(request, served, context.authorization, draws)
        exchange.decided(
            served.route.pair.metadata.key,
            judged.decision,
            self._observer,
            self._observer.span(model=request.model, operation=request.endpoint, traceparent=context.traceparent),
            self._lesson(request, served.route, judged),
        )
        error: SlipstreamError | None = None
        for leg, replica in _attempts(served, judged.decision, request, lambda: self._is_killed_now(served)):
            exchange.attempt(leg.decision, leg.backend, replica)
            job = self._job(leg, exchange, context)
            try:
                answer = await self._try(exchange, replica, job)
                exchange.answered(
                    self._parity.watch(
                        answer, served=served, decision=leg.decision, job=job, draw=draws.parity, lesson=exchange.lesson
                    )
                )
                return
            except (UpstreamError, Overloaded) as exc:
                error = exc
                self._failed(replica, exc, exchange)
        if error is None or isinstance(error, UpstreamUnavailable):
            raise UpstreamUnavailable(
                f"No server for the model '{request.model}' is up.",
                retry_after_s=max(served.plain.retry_after_s(), 1.0),
            ) from error
        raise error

    def _is_killed_now(self, served: ServedRoute) -> bool:
        """Whether a kill switch of the pair was turned on since the request was decided, whatever it serves now."""
        return served.route.pair.metadata.key in self.fleet.current.killed

    def _lesson(self, request: GenerationRequest, route: Route, judged: _Judged) -> Lesson | None:
        """Several choices share their time and tell nothing of one. Only clients that may choose may keep quiet."""
        may_choose = route.policy is not None and route.policy.spec.allow_client_mode
        if request.n > 1 or (may_choose and not request.learn):
            return None
        return Lesson(judged.subject, judged.profile.prompt_tokens, self._outcomes)

    async def _try(self, exchange: Exchange, replica: Replica, job: Job) -> Completion | Stream:
        deadlines = self._deadlines
        if job.request.stream:
            with exchange.watchdog.waiting(deadlines.first_chunk_s, "the first chunk"):
                return await replica.upstream.open(job)
        with exchange.watchdog.waiting(deadlines.total_s, "the answer"):
            return await replica.upstream.complete(job)

    def _job(self, leg: Leg, exchange: Exchange, context: Context) -> Job:
        headers = exchange.trace_headers()
        if context.authorization is not None:
            headers = (("authorization", context.authorization), *headers)
        return Job(
            request=exchange.request,
            model=leg.backend.model,
            draft_length=leg.decision.draft_length,
            request_id=context.request_id,
            headers=headers,
        )

    def _failed(self, replica: Replica, error: SlipstreamError, exchange: Exchange) -> None:
        exchange.attempt_failed(error)
        self._observer.upstream_failed(endpoint=replica.name, error=type(error).__name__)


def _served(snapshot: Snapshot, request: GenerationRequest) -> ServedRoute:
    served = snapshot.routes.get(request.model)
    if served is None:
        if snapshot.incomplete:
            raise UpstreamUnavailable(snapshot.incomplete, retry_after_s=_RETRY_INCOMPLETE_S)
        raise ModelNotFound(request.model)
    return served


def _is_forecast(route: Route) -> bool:
    """Whether the policy asks for a forecast."""
    return route.speculative is not None and route.policy is not None and route.policy.spec.decision != "rules"


def _attempts(
    served: ServedRoute, decision: Decision, request: GenerationRequest, is_killed_now: Callable[[], bool]
) -> Iterator[tuple[Leg, Replica]]:
    """Replicas to try, in order: those of the decided arm, then those of the plain arm; each server once.

    Where all that is left is known to be down, one is tried all the same: it may be back, and there is nothing to
    lose. A kill switch that is turned on between two attempts ends those on the speculative arm.
    """
    tried: list[Replica] = []
    leg: Leg | None = None
    for leg in _legs(served, decision, request, is_killed_now):
        while not (leg.decision.arm is Arm.SPECULATIVE and is_killed_now()):
            if len(tried) == MAX_ATTEMPTS or (replica := leg.pool.pick(tried)) is None:
                break
            tried.append(replica)
            yield leg, replica
    if not tried and leg is not None and (last := leg.pool.last_resort()) is not None:
        yield leg, last


def _legs(
    served: ServedRoute, decision: Decision, request: GenerationRequest, is_killed_now: Callable[[], bool]
) -> Iterator[Leg]:
    route = served.route
    if decision.arm is Arm.SPECULATIVE and route.speculative is not None and served.speculative is not None:
        yield Leg(served.speculative, route.speculative, decision)
        if route.plain.capabilities.missing(request.features):
            return
        decision = _fallen_back(decision, killed=is_killed_now())
    yield Leg(served.plain, route.plain, decision)


def _fallen_back(decision: Decision, *, killed: bool) -> Decision:
    reason, detail = Reason.SPECULATIVE_UNAVAILABLE, "no server of the speculative arm could take the request"
    if killed:
        reason, detail = Reason.KILL_SWITCH, "a kill switch was turned on while the request waited for a server"
    return msgspec.structs.replace(decision, arm=Arm.PLAIN, reason=reason, draft_length=0, detail=detail)
