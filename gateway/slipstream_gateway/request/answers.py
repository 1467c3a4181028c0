"""Answers to calls from one or more servers: failover before the first byte, resumption after it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence

import msgspec
from slipstream_core.errors import (
    ModelNotLoaded,
    Overloaded,
    RequestError,
    SlipstreamError,
    UpstreamError,
    UpstreamUnavailable,
    for_log,
)
from slipstream_core.settings import Deadlines
from slipstream_core.types import Arm, Decision

from slipstream_gateway.fleet.snapshot import ServedRoute
from slipstream_gateway.request.call import Call, Reply, observe
from slipstream_gateway.request.candidates import (
    Attempt,
    Candidate,
    Plan,
    has_elsewhere,
)
from slipstream_gateway.request.causes import cause_of, error_type
from slipstream_gateway.request.deadlines import LateError, upstream_late, upstream_stalled
from slipstream_gateway.request.journal import journal_of, same_target
from slipstream_gateway.request.outcome import Recorder
from slipstream_gateway.request.query_of_death import PROGRESS_TOKENS, QueriesOfDeath
from slipstream_gateway.request.search import Resumptions, Search
from slipstream_gateway.upstreams.base import Job, Piece, Stream
from slipstream_gateway.upstreams.pool import Replica

_log = logging.getLogger(__name__)


class Answers:
    """Gets answers from servers."""

    def __init__(
        self,
        *,
        resumptions: Resumptions,
        deadlines: Deadlines,
        recorders: Sequence[Recorder],
        deaths: QueriesOfDeath,
    ) -> None:
        self._resumptions = resumptions
        self._deadlines = deadlines
        self._recorders = recorders
        self._deaths = deaths

    async def answer(self, call: Call, decision: Decision, served: ServedRoute, reply: Reply) -> None:
        """Sends the pieces of one answer to `reply`. If a server fails, before the first byte or after it, the next
        candidate takes over. Raises `RequestError`, or the error of the last server, or that of `reply`."""
        is_canary = call.observation is not None and call.observation.canary
        search = Search(self._resumptions, call, Plan(served, decision, call.request, to_canary=is_canary))
        try:
            while True:
                candidate = await search.next()
                attempt = _begin(call, candidate)
                call.timer.probe(*self._probed(candidate, call, served))
                try:
                    if not call.request.stream:
                        whole = await self._complete(call, attempt)
                        attempt.completed()
                        if call.copy is not None:
                            call.copy.add(whole)
                        call.note_end(whole)
                        await reply.send(call, whole)
                        return
                    stream = await self._open(call, attempt)
                    patience_s, late = self._patience(candidate, call, served)
                    timer, journal, copy = call.timer, call.journal, call.copy
                    is_probed = journal is not None  # a stream that cannot resume has nothing to gain from a probe
                    while True:
                        with timer.waiting(patience_s, "the next chunk", late, probed=is_probed):
                            part = await stream.next()
                        if part is None:
                            break
                        if journal is not None:
                            journal.add(part)
                        if copy is not None:
                            copy.add(part)
                        call.note(part)
                        await reply.send(call, part)
                    attempt.completed()
                    return
                except (UpstreamError, Overloaded) as exc:
                    await attempt.close()
                    self._failed(call, attempt, exc)
                except RequestError as exc:
                    if candidate.decision.revision and not call.has_begun:
                        call.refused = call.observation  # by a new revision; the serving one may accept it
                    elif (adapter := _refused_adapter(call, candidate, exc)) is not None:
                        candidate.replica.refused(adapter)
                        await attempt.close()
                        call.failure, call.attempt = UpstreamUnavailable("The upstream lacks the adapter."), None
                        continue
                    elif call.stream is not None or call.committed is None:
                        raise
                    await attempt.close()  # a server refused to continue the answer
                    self._failed(call, attempt, exc)
                finally:
                    await attempt.close()
        finally:
            search.close()

    async def _complete(self, call: Call, attempt: Attempt) -> Piece:
        """The whole answer to a request that is not streamed."""
        job = self._job(call, attempt)
        with call.timer.waiting(self._deadlines.total_s, "the answer", probed=True):
            completion = await attempt.replica.upstream.complete(job)
        call.spent, call.fingerprint = completion.usage, attempt.replica.upstream.fingerprint
        attempt.began(None)
        return completion.body

    async def _open(self, call: Call, attempt: Attempt) -> Stream:
        """Opens a stream and waits for its first piece, of the answer or of its continuation."""
        resumes, upstream = call.has_begun, attempt.replica.upstream
        with call.timer.waiting(self._deadlines.first_chunk_s, "the first chunk", probed=True):
            if not resumes and call.context.carrier is None:
                await upstream.meet()
                call.journal = journal_of(call.request, attempt.served.route, upstream.drafting)
            stream = await upstream.open(self._job(call, attempt))
        attempt.stream = stream
        if not resumes:
            call.fingerprint = upstream.fingerprint
        call.stream = stream
        attempt.began(stream)
        if resumes:
            self._resumptions.resumed(call)
        return stream

    def _job(self, call: Call, attempt: Attempt) -> Job:
        context, decision, replica = call.context, attempt.decision, attempt.replica
        headers = call.span.headers() if call.span is not None else ()
        if context.authorization is not None:
            headers = (("authorization", context.authorization), *headers)
        if context.forwarded:
            headers = (*context.forwarded, *headers)
        if context.deadline_s is not None:
            headers = (*headers, ("x-request-timeout", f"{max(context.deadline_s - time.monotonic(), 0.001):.3f}"))
        gives_token_ids = replica.gives_token_ids or replica.upstream.gives_token_ids
        return Job(
            request=call.request,
            model=attempt.backend.model,
            draft_length=decision.draft_length,
            seeded=replica.upstream.drafting.is_seeded,
            adaptive=decision.adaptive,
            protected=decision.protected and replica.upstream.drafting.protects,
            request_id=context.request_id,
            headers=headers,
            committed=call.committed,
            deadline_s=context.deadline_s,
            request_class=decision.request_class,
            token_ids=gives_token_ids and _needs_token_ids(call, attempt),
            bounds_output=bool(context.caller.key_id),  # only requests with a key are charged
            carrier=context.carrier,
        )

    def _probed(self, candidate: Candidate, call: Call, served: ServedRoute) -> tuple[Replica | None, float]:
        """The server to probe during waits, and the time for a probe in seconds. A server is probed only if it answers
        probes and another server could take over."""
        replica = candidate.replica
        if replica.upstream.answers_probes and _has_elsewhere(candidate, call, served):
            return replica, self._deadlines.stall_s
        return None, math.inf

    def _patience(self, candidate: Candidate, call: Call, served: ServedRoute) -> tuple[float, LateError]:
        """The maximum silence of a stream in seconds, and the error after it. The time is short if the stream can
        resume on another server and silence is the only sign of a server that hangs."""
        deadlines, replica = self._deadlines, candidate.replica
        stalls = (
            call.journal is not None and not replica.upstream.answers_probes and _has_elsewhere(candidate, call, served)
        )
        if stalls and deadlines.stall_s < deadlines.between_chunks_s:
            return deadlines.stall_s, upstream_stalled
        return deadlines.between_chunks_s, upstream_late

    def _failed(self, call: Call, attempt: Attempt, error: SlipstreamError) -> None:
        """Records the failure of a closed attempt. The client may never see it."""
        name, arm = attempt.replica.name, attempt.decision.arm
        _log.warning("%s: %s", name, for_log(error))
        for recorder in self._recorders:
            recorder.attempt_failed(server=name, error=type(error).__name__)
        # The operator compares the failures of both arms. If all servers of the control fail, each of its requests
        # tries several servers, which counts as one failure. So it does for two revisions that are compared. A refusal
        # may be the client's fault.
        is_of_revision = call.observation is not None and bool(call.observation.revision)
        is_seen = call.attempts == 1 if is_of_revision or arm is Arm.CONTROL else arm is Arm.SPECULATIVE
        if is_seen and not isinstance(error, RequestError):
            observe(call, attempt, error_type(error), call.times())
        if attempt.decision.revision and call.observation is not None:  # it is over for the new revision
            call.observation = msgspec.structs.replace(call.observation, revision="", canary=False)
        call.runs += isinstance(error, UpstreamError) and error.was_sent and not _progressed(call)
        self._deaths.failed(call.pair, call.request, attempt.replica, error)
        if isinstance(error, UpstreamError | Overloaded) and not call.timer.over:
            attempt.failed(cause_of(error), broke=isinstance(error, UpstreamError) and error.broke)
        call.failure = error.with_traceback(None)  # it would keep the frames alive that hold the call
        call.attempt = None
        if call.stream is not None:
            call.spent, call.stream = call.usage, None


def _progressed(call: Call) -> bool:
    """Whether the server sent at least `PROGRESS_TOKENS` before it failed. Its failure then rarely is the request's."""
    before = call.committed.output_tokens if call.committed is not None else 0
    return call.stream is not None and call.stream.usage.output_tokens - before >= PROGRESS_TOKENS


def _needs_token_ids(call: Call, attempt: Attempt) -> bool:
    """Whether the ids of the answer's tokens are used."""
    if call.journal is not None:
        return True
    return bool(call.drawn) and any(drawn.wants_token_ids(call, attempt) for drawn in call.drawn)


def _refused_adapter(call: Call, candidate: Candidate, error: RequestError) -> str | None:
    """The LoRA adapter that the server of `candidate` does not have, as its `error` says. Others may have it. None: the
    error says something else, or that of another server."""
    is_of_candidate = isinstance(error, ModelNotLoaded) and call.context.carrier is None
    return candidate.served.adapter if is_of_candidate else None


def _has_elsewhere(candidate: Candidate, call: Call, served: ServedRoute) -> bool:
    """Whether another server could take over from that of `candidate`. From one of a new revision those of `served`
    can, after the first byte only if the target is the same."""
    if candidate.decision.revision and (not call.has_begun or same_target(candidate.served.route, served.route)):
        return bool(served.plain.replicas)
    return has_elsewhere(candidate.served, candidate.replica)


def _begin(call: Call, candidate: Candidate) -> Attempt:
    if not call.has_begun:
        call.decision = candidate.decision
    call.attempts += 1
    call.server = candidate.replica.name
    call.attempt = attempt = Attempt(candidate, call.context.caller.key_id)
    if call.context.carrier is not None:
        call.context.carrier.decided(candidate.decision)
    return attempt
