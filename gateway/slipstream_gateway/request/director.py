"""One request from decision to last byte: tries replicas and arms before the first byte, measures after it."""

from __future__ import annotations

import contextlib
import secrets
import time
from typing import NamedTuple, Protocol

import msgspec
from slipstream_core.errors import (
    ModelNotFound,
    Overloaded,
    SlipstreamError,
    UpstreamError,
    UpstreamFailed,
    UpstreamUnavailable,
)
from slipstream_core.manifest.table import Route
from slipstream_core.observation import Draws, Forecast, Subject
from slipstream_core.settings import Deadlines
from slipstream_core.types import ANONYMOUS, Caller, Decision, GenerationRequest, RequestProfile, speculation_of

from slipstream_gateway.admission import Admission, Sample
from slipstream_gateway.decide.route import NO_DRAWS, Health, RequestDraws, decide
from slipstream_gateway.decide.route.pressure import SHRINK_FROM
from slipstream_gateway.fleet.fleet import Fleet, ServedRoute, Snapshot
from slipstream_gateway.request.arguments import check_arguments
from slipstream_gateway.request.causes import rejection
from slipstream_gateway.request.entry import Context, Entered, Explanation
from slipstream_gateway.request.exchange import Exchange
from slipstream_gateway.request.failover import Failover
from slipstream_gateway.request.hedging import Hedging
from slipstream_gateway.request.legs import Leg, first_attempts
from slipstream_gateway.request.observing import Learner, Lesson, Outcomes, key_id_of
from slipstream_gateway.request.outcome import Observer
from slipstream_gateway.request.parity.parity import Parity
from slipstream_gateway.request.resume import Journal, journal_of
from slipstream_gateway.request.retry_budget import RetryBudget
from slipstream_gateway.request.watchdog import Watchdog
from slipstream_gateway.upstreams.base import Committed, Completion, Job, Stream
from slipstream_gateway.upstreams.pool import Replica

_RETRY_INCOMPLETE_S = 5.0
_UP, _DOWN = Health(), Health(speculative_available=False)


class Classifier(Protocol):
    """Says what to expect of a request. Pure and quick."""

    def classify(self, request: GenerationRequest) -> RequestProfile: ...

    def explain(self, request: GenerationRequest) -> RequestProfile:
        """The same profile with its evidence, which takes longer to gather."""
        ...


class _Judged(NamedTuple):
    """A decision with what it was made from."""

    profile: RequestProfile
    subject: Subject
    decision: Decision


class _Run(NamedTuple):
    """A decided request on its way to servers. `request` has a seed."""

    served: ServedRoute
    decision: Decision
    request: GenerationRequest
    context: Context
    draws: Draws


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
        draws: RequestDraws,
        retries: RetryBudget | None = None,
    ) -> None:
        self.fleet = fleet
        self.admission = admission
        self._classifier = classifier
        self._observer = observer
        self._deadlines = deadlines
        self._learner = learner
        self._outcomes = outcomes
        self._parity = parity
        self._draws = draws
        self._retries = RetryBudget() if retries is None else retries
        self.hedging = Hedging()
        self.failover = Failover(fleet=fleet, retries=self._retries, deadlines=deadlines)

    def explain(
        self,
        request: GenerationRequest,
        *,
        authorization: str | None = None,
        caller: Caller = ANONYMOUS,
        request_id: str | None = None,
    ) -> Explanation:
        """The decision for `request`; without an id of its own, chance has no part in it.

        Raises `ModelNotFound`, `UnsupportedParameter` or `InvalidRequest`.
        """
        served = _served(self.fleet.current, request)
        draws = NO_DRAWS if request_id is None else self._draws.of(request_id)
        pressure = self.admission.pressure(served.route.pair.metadata.key)
        judged = self._decide(request, served, caller, authorization, draws, pressure)
        return Explanation(served.route.pair.metadata.key, self._classifier.explain(request), judged.decision)

    async def enter(self, request: GenerationRequest, context: Context) -> Entered:
        """Takes a place for `request`; no server is asked before `start`. The caller closes the exchange. Raises
        `RequestError`, `Overloaded` or `DeadlineExceeded`."""
        started_s = time.perf_counter()
        self._retries.deposit()
        pair = await self._enter(request, context)
        entered_s = time.perf_counter()
        try:
            snapshot = self.fleet.enter()
        except BaseException:
            self.admission.leave(pair)
            raise
        self.fleet.use.begin(pair)
        exchange = Exchange(
            request=request,
            started_s=started_s,
            watchdog=Watchdog(total_s=self._deadlines.total_s, deadline_s=context.deadline_s),
            deadlines=self._deadlines,
            on_close=lambda status: self._leave(snapshot, pair, entered_s, exchange, status),
            request_id=context.request_id,
            key_id=context.caller.key_id,
        )
        return Entered(exchange, snapshot, context)

    async def start(self, entered: Entered) -> None:
        """Returns when the first piece of the answer (or, not streamed, all of it) is here. Raises `RequestError`,
        `Overloaded` or `UpstreamError`, with the exchange closed; nothing has been promised to the client by then."""
        exchange = entered.exchange
        try:
            await self._start(exchange, entered.snapshot, entered.context)
        except BaseException as exc:  # also a client that left: every way out is recorded, then goes on
            if isinstance(exc, SlipstreamError) and not exchange.is_decided:
                self._observer.rejected(rejection(exc))
            await exchange.fail(exc)
            raise

    async def _enter(self, request: GenerationRequest, context: Context) -> str:
        """Takes a place for `request`. Returns the key of the pair that serves it."""
        try:
            pair = _served(self.fleet.current, request).route.pair.metadata.key
            if not self.admission.try_enter(pair):
                await self.admission.enter(pair, context.caller, context.deadline_s)
        except SlipstreamError as exc:
            self._observer.rejected(rejection(exc))
            raise
        return pair

    def _leave(self, snapshot: Snapshot, pair: str, entered_s: float, exchange: Exchange, status: str) -> None:
        self.fleet.leave(snapshot)
        self.fleet.use.end(pair)
        sample = _sample(exchange, entered_s) if status == "ok" and exchange.is_first_attempt else None
        self.admission.leave(pair, sample, refused=status == "overloaded")

    def _decide(
        self,
        request: GenerationRequest,
        served: ServedRoute,
        caller: Caller,
        authorization: str | None,
        draws: Draws,
        pressure: float,
    ) -> _Judged:
        check_arguments(request, served.route)
        profile = self._classifier.classify(request)
        route, learner = served.route, self._learner
        subject = learner.subject(
            request,
            profile,
            pair=route.pair.metadata.key,
            key_id=caller.key_id or key_id_of(authorization),
            is_authenticated=bool(caller.key_id),
        )
        target, health = _speculative_target(served, request)
        forecast = None
        if target is not None and _is_forecast(route):
            forecast = self._forecast(request, profile, subject, served, target)
        decision = decide(
            request,
            profile,
            route,
            forecast=forecast,
            draws=draws,
            health=health,
            pressure=pressure,
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
        draws = self._draws.of(context.request_id)
        pressure = self.admission.pressure(served.route.pair.metadata.key, inside=True)
        judged = self._decide(request, served, context.caller, context.authorization, draws, pressure)
        exchange.decided(
            served.route.pair.metadata.key,
            judged.decision,
            self._observer,
            self._observer.span(request, request_id=context.request_id, traceparent=context.traceparent),
            self._lesson(request, served.route, judged),
        )
        await self._answer(exchange, _Run(served, judged.decision, _seeded(request), context, draws))

    async def _answer(self, exchange: Exchange, run: _Run) -> None:
        """Tries replicas until one gives a first piece. Raises what the last one failed with."""
        served, request = run.served, run.request
        error: SlipstreamError | None = None
        spared: list[Replica] = []
        attempts = first_attempts(served, run.decision, request, lambda: self._is_killed_now(served), spared)
        for leg, replica in attempts:
            if error is not None and (exchange.watchdog.over or not self._retries.allow()):
                break
            exchange.attempt(leg, replica, self.failover.lookout(served, leg, replica))
            try:
                await self._try(exchange, run, leg, replica)
                return
            except (UpstreamError, Overloaded) as exc:
                error = exc
                exchange.attempt_failed(exc)
                if isinstance(exc, UpstreamFailed):
                    spared.append(replica)
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
        if request.choices > 1 or (may_choose and not request.learn):
            return None
        one_pool = route.speculative is None or route.speculative.pool == route.plain.pool
        return Lesson(judged.subject, judged.profile.prompt_tokens, self._outcomes, one_pool)

    async def _try(self, exchange: Exchange, run: _Run, leg: Leg, replica: Replica) -> None:
        wants_token_ids = self._parity.wants_token_ids(
            replica, served=run.served, decision=leg.decision, request=run.request, draw=run.draws.parity
        )
        journal = journal_of(run.request, run.served.route, leg.backend)
        token_ids = wants_token_ids or _counts_by_ids(journal, replica)
        job = self._job(exchange, run, leg, token_ids=token_ids)
        if not job.request.stream:
            with exchange.watchdog.waiting(self._deadlines.total_s, "the answer"):
                completion = await self._complete(exchange, run, leg, replica, job)
            exchange.answered(self._watched(completion, exchange, run, leg, job))
            return
        stream = await self._open(exchange, run, leg, replica, job)

        async def reopen(leg: Leg, replica: Replica, committed: Committed) -> Stream:
            job = self._job(exchange, run, leg, committed, token_ids=_counts_by_ids(journal, replica))
            return await self._open(exchange, run, leg, replica, job)

        continuation = self.failover.continuation(run.served, leg, replica, run.request, journal, reopen)
        exchange.answered(self._watched(stream, exchange, run, leg, job), continuation)

    async def _complete(self, exchange: Exchange, run: _Run, leg: Leg, replica: Replica, job: Job) -> Completion:
        policy = run.served.route.policy
        if policy is None or policy.spec.hedge_share <= 0.0:
            with exchange.lookout:
                return await replica.upstream.complete(job)

        async def ask(replica: Replica, job: Job) -> Completion:
            lookout = self.failover.lookout(run.served, leg, replica)
            if lookout is None:
                return await replica.upstream.complete(job)
            with contextlib.closing(lookout), lookout:
                return await replica.upstream.complete(job)

        calm = self.admission.pressure(exchange.pair, inside=True) <= SHRINK_FROM
        share = policy.spec.hedge_share
        return await self.hedging.complete(exchange, leg, replica, job, ask, share=share, calm=calm)

    async def _open(self, exchange: Exchange, run: _Run, leg: Leg, replica: Replica, job: Job) -> Stream:
        first_chunk_s = self._deadlines.first_chunk_s
        with exchange.watchdog.waiting(first_chunk_s, "the first chunk"), exchange.lookout:
            return await replica.upstream.open(job)

    def _watched(
        self, answer: Completion | Stream, exchange: Exchange, run: _Run, leg: Leg, job: Job
    ) -> Completion | Stream:
        return self._parity.watch(
            answer, served=run.served, decision=leg.decision, job=job, draw=run.draws.parity, lesson=exchange.lesson
        )

    def _job(
        self, exchange: Exchange, run: _Run, leg: Leg, committed: Committed | None = None, *, token_ids: bool = False
    ) -> Job:
        headers, context = exchange.trace_headers(), run.context
        if context.authorization is not None:
            headers = (("authorization", context.authorization), *headers)
        if context.forwarded:
            headers = (*context.forwarded, *headers)
        if context.deadline_s is not None:
            headers = (*headers, ("x-request-timeout", f"{max(context.deadline_s - time.monotonic(), 0.001):.3f}"))
        return Job(
            request=run.request,
            model=leg.backend.model,
            draft_length=leg.decision.draft_length,
            request_id=context.request_id,
            headers=headers,
            committed=committed,
            deadline_s=context.deadline_s,
            request_class=leg.decision.request_class,
            token_ids=token_ids,
            bounds_output=bool(context.caller.key_id),  # nobody else is charged
        )


def _counts_by_ids(journal: Journal | None, replica: Replica) -> bool:
    return (
        journal is not None and journal.asks_token_ids and (replica.gives_token_ids or replica.upstream.gives_token_ids)
    )


def _sample(exchange: Exchange, entered_s: float) -> Sample:
    """How long the servers took, without the wait for a place: the limit must not go by what it does itself."""
    first_s = exchange.first_s
    return Sample(
        prompt_size=len(exchange.request.raw),
        ttft_s=first_s - entered_s if first_s is not None else None,
        e2e_s=time.perf_counter() - entered_s,
        output_tokens=exchange.usage.output_tokens,
    )


def _seeded(request: GenerationRequest) -> GenerationRequest:
    """With a seed of its own where the client gave none: whoever goes on with an answer must draw as the first did."""
    if request.seed is not None:
        return request
    return msgspec.structs.replace(request, seed=secrets.randbits(63))


def _served(snapshot: Snapshot, request: GenerationRequest) -> ServedRoute:
    served = snapshot.routes.get(request.model)
    if served is None:
        if snapshot.incomplete:
            raise UpstreamUnavailable(snapshot.incomplete, retry_after_s=_RETRY_INCOMPLETE_S)
        raise ModelNotFound(request.model)
    return served


def _speculative_target(served: ServedRoute, request: GenerationRequest) -> tuple[Replica | None, Health]:
    """Where `request` would speculate now, and why nowhere."""
    if served.speculative is None:
        return None, _UP
    needs = speculation_of(request)
    target = served.speculative.least_busy(needs)
    if target is not None:
        longest = served.speculative.longest_draft(needs)
        return target, _UP if longest is None else Health(longest_draft=longest)
    withheld = served.speculative.withheld(needs)
    return None, _DOWN if withheld is None else Health(speculative_available=False, withheld=withheld)


def _is_forecast(route: Route) -> bool:
    """Whether the policy asks for a forecast."""
    return route.speculative is not None and route.policy is not None and route.policy.spec.decision != "rules"
