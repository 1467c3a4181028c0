"""`dispatch` runs a request, from its admission to its record."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec
from slipstream_core.errors import ModelNotFound, SlipstreamError, UpstreamUnavailable
from slipstream_core.observation import Draws
from slipstream_core.random_bytes import random_seed
from slipstream_core.settings import Deadlines
from slipstream_core.types import ANONYMOUS, Caller, Decision, GenerationRequest

from slipstream_gateway.admission import Admission, Sample
from slipstream_gateway.decide.route import NO_DRAWS, fresh_draws, opts_out
from slipstream_gateway.fleet.fleet import Fleet
from slipstream_gateway.fleet.snapshot import ServedRoute, Snapshot
from slipstream_gateway.request.answer_copy import AnswerCopy
from slipstream_gateway.request.answers import Answers
from slipstream_gateway.request.call import Before, Call, Context, Reply, observe, observe_refusal
from slipstream_gateway.request.causes import error_type, rejection
from slipstream_gateway.request.cold_start import ColdStarts
from slipstream_gateway.request.deadlines import CallTimer
from slipstream_gateway.request.decider import Decider, Explanation, Judged
from slipstream_gateway.request.observations import Outcomes, PendingObservation
from slipstream_gateway.request.outcome import Recorder, Tracer
from slipstream_gateway.request.query_of_death import QueriesOfDeath
from slipstream_gateway.request.retry_budget import RetryBudget

_RETRY_INCOMPLETE_S = 5.0


class Dispatcher:
    """Runs requests. Its state is in the objects given to the constructor."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        cold_starts: ColdStarts,
        admission: Admission,
        decider: Decider,
        answers: Answers,
        retries: RetryBudget,
        deadlines: Deadlines,
        outcomes: Outcomes,
        tracer: Tracer,
        recorders: Sequence[Recorder],
        deaths: QueriesOfDeath,
        before: Sequence[Before] = (),
        draw: Callable[[], Draws] = fresh_draws,
    ) -> None:
        self._fleet = fleet
        self._cold_starts = cold_starts
        self._admission = admission
        self._decider = decider
        self._answers = answers
        self._retries = retries
        self._deadlines = deadlines
        self._outcomes = outcomes
        self._tracer = tracer
        self._recorders = recorders
        self._deaths = deaths
        self._before = before
        self._draw = draw

    def call(self, request: GenerationRequest, context: Context) -> Call:
        """A call for the current task: its deadlines cancel that task."""
        return Call(request, context, CallTimer(total_s=self._deadlines.total_s, deadline_s=context.deadline_s))

    async def dispatch(self, call: Call, reply: Reply) -> None:
        """Runs `call`: sends its answer to `reply`, and records it. However it ends, no upstream works on it then.

        Raises `RequestError`, `Overloaded`, `DeadlineExceeded`, `UpstreamError` or `ClientTimeout`.
        """
        self._retries.deposit()
        place = await self._admit(call)
        snapshot = self._enter(call, place)
        try:
            served = _served(snapshot, call.request)
            if self._deaths.known:
                self._deaths.check(served.route.key, call.request)
            decision = self._decide(call, served)
            await self._answers.answer(call, decision, served, reply)
            await reply.end(call)
            call.status = "ok"
            if self._deaths.known:
                self._deaths.answered(call.pair, call.request)
        except BaseException as exc:
            call.status = error_type(exc)
            if call.decision is None and isinstance(exc, SlipstreamError):
                self._rejected(exc)
            raise
        finally:
            call.timer.close()
            self._leave(call, snapshot, place)
            self._record(call)
            for drawn in call.drawn:
                drawn.ended(call)

    def explain(self, request: GenerationRequest, *, caller: Caller = ANONYMOUS) -> Explanation:
        """The decision for `request`, without running it and without random draws.

        Raises `ModelNotFound`, `UnsupportedParameter` or `InvalidRequest`.
        """
        served = _served(self._fleet.current, request)
        pair = served.route.key
        judged = self._decider.decide(
            request,
            served,
            caller=caller,
            draws=NO_DRAWS,
            pressure=self._admission.pressure(pair),
        )
        return Explanation(pair, self._decider.explain(request), judged.decision)

    async def _admit(self, call: Call) -> str:
        """Waits for the first server of a pair that scales to zero, and acquires a place for the call at the pair that
        serves its model. Returns the pair's key."""
        context = call.context
        try:
            served = _served(self._fleet.current, call.request)
            if not served.plain.replicas:
                served = await self._cold_starts.served(lambda: _served(self._fleet.current, call.request), call.timer)
            pair = served.route.key
            if not self._admission.try_enter(pair):
                await self._admission.enter(pair, context.caller, context.deadline_s)
        except SlipstreamError as exc:
            self._rejected(exc)
            raise
        call.entered_s = time.perf_counter()
        return pair

    def _enter(self, call: Call, place: str) -> Snapshot:
        """The snapshot that the call uses to its end."""
        try:
            snapshot = self._fleet.enter()
        except BaseException:
            self._admission.leave(place)
            raise
        served = snapshot.by_name.get(call.request.model)
        self._fleet.use.begin(place, announced=served is not None and served.scales_to_zero)
        return snapshot

    def _leave(self, call: Call, snapshot: Snapshot, place: str) -> None:
        self._fleet.leave(snapshot)
        self._fleet.use.end(place)
        is_serving = call.decision is not None and not call.decision.revision  # a new revision has its own capacity
        sample = _sample(call) if call.status == "ok" and call.attempts == 1 and is_serving else None
        self._admission.leave(place, sample, refused=call.status == "overloaded")

    def _decide(self, call: Call, served: ServedRoute) -> Decision:
        request, context = call.request, call.context
        if not (is_opted_out := opts_out(request, served.route)):
            call.draws = self._draw()
        judged = self._decider.decide(
            request,
            served,
            caller=context.caller,
            draws=call.draws,
            pressure=self._admission.pressure(served.route.key, inside=True),
        )
        call.pair = served.route.key
        call.decision = judged.decision
        if not is_opted_out:
            call.observation = self._pending(call, served, judged)
            if call.observation is not None and call.observation.is_measured:
                call.copy = AnswerCopy()
        call.span = self._tracer.span(request, request_id=context.request_id, traceparent=context.traceparent)
        call.request = _seeded(request)
        for draw in self._before:
            if (drawn := draw(call, served)) is not None:
                call.draw(drawn)
        return judged.decision

    def _pending(self, call: Call, served: ServedRoute, judged: Judged) -> PendingObservation | None:
        """The observation to record. None for several choices: they share their time, so the time of one is unknown.
        A request without one does not go to a new revision."""
        route = served.route
        # A proxy sends its request once, so a new revision that fails would fail the client.
        canary = route.canary if call.context.carrier is None else None
        if call.request.choices > 1:
            return None
        one_pool = route.speculative is None or route.speculative.pool == route.plain.pool
        return PendingObservation(
            judged.subject,
            judged.profile.prompt_tokens,
            self._outcomes,
            one_pool,
            revision="" if canary is None else canary.revision,
            canary=canary is not None and call.draws.canary < canary.share,
            # Of the serving revision as many answers as of the new one: more would cost time and show little more.
            is_measured=canary is not None and call.draws.canary < 2.0 * canary.share,
        )

    def _rejected(self, error: SlipstreamError) -> None:
        for recorder in self._recorders:
            recorder.rejected(rejection(error))

    def _record(self, call: Call) -> None:
        if call.decision is None:
            return
        times = call.times()
        outcome = call.outcome(call.decision, times)
        for recorder in self._recorders:
            recorder.record(outcome)
        if call.span is not None:
            call.span.end(outcome)
        if call.attempt is not None:
            observe(call, call.attempt, call.status, times)
            observe_refusal(call, times)


def _sample(call: Call) -> Sample:
    """The servers' time without the wait for a place: the limit must not depend on its own effect."""
    return Sample(
        prompt_size=len(call.request.raw),
        ttft_s=call.first_s - call.entered_s if call.first_s is not None else None,
        e2e_s=time.perf_counter() - call.entered_s,
        output_tokens=call.usage.output_tokens,
    )


def _seeded(request: GenerationRequest) -> GenerationRequest:
    """The request with a seed, a random one if the client set none: a server that resumes an answer must use the same
    noise as the first server, and a client can repeat the answer by the seed in its usage."""
    if request.seed is not None:
        return request
    return msgspec.structs.replace(request, seed=random_seed())


def _served(snapshot: Snapshot, request: GenerationRequest) -> ServedRoute:
    served = snapshot.by_name.get(request.model)
    if served is None:
        if snapshot.incomplete:
            raise UpstreamUnavailable(snapshot.incomplete, retry_after_s=_RETRY_INCOMPLETE_S)
        raise ModelNotFound(request.model)
    return served
