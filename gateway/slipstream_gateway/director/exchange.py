"""One request in flight: which attempt runs, what arrived when, and what to record when it is over."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from slipstream_gateway.director.observing import Lesson, Times
from slipstream_gateway.director.outcome import Observer, Outcome, Span
from slipstream_gateway.director.watchdog import Watchdog
from slipstream_gateway.errors import (
    ClientTimeout,
    ModelNotFound,
    Overloaded,
    RequestError,
    SlipstreamError,
    UnsupportedParameter,
    UpstreamError,
    UpstreamFailed,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from slipstream_gateway.manifest.table import Backend
from slipstream_gateway.settings import Deadlines
from slipstream_gateway.types import Arm, Decision, GenerationRequest
from slipstream_gateway.upstreams.base import Completion, Piece, Stream, Tokens, Usage
from slipstream_gateway.upstreams.pool import Batch, Occupancy, Replica

_log = logging.getLogger(__name__)


class Exchange:
    """Made by the director; the API reads pieces from it and closes it. Closing twice is harmless."""

    def __init__(
        self,
        *,
        request: GenerationRequest,
        started_s: float,
        watchdog: Watchdog,
        deadlines: Deadlines,
        on_close: Callable[[], None],
    ) -> None:
        self.request = request
        self.watchdog = watchdog
        self._started_s = started_s
        self._between_s = deadlines.between_chunks_s
        self._on_close: Callable[[], None] | None = on_close
        self._pair = ""
        self._decision: Decision | None = None
        self._observer: Observer | None = None
        self._span: Span | None = None
        self._lesson: Lesson | None = None
        self._replica: Replica | None = None
        self._backend: Backend | None = None
        self._since: Occupancy | None = None
        self._stops = 0
        self._attempts = 0
        self._completion: Completion | None = None
        self._stream: Stream | None = None
        self._finish_reasons: tuple[str, ...] = ()
        self._first_s: float | None = None
        self._last_s = 0.0

    @property
    def decision(self) -> Decision:
        """What the answer carries: the decision, or what became of it when another arm had to take over."""
        if self._decision is None:
            raise RuntimeError("the exchange has no decision yet")
        return self._decision

    @property
    def is_decided(self) -> bool:
        """Whether there is a decision, so that the end is recorded as an outcome."""
        return self._decision is not None

    @property
    def lesson(self) -> Lesson | None:
        """What the request teaches; None where it is to teach nothing."""
        return self._lesson

    @property
    def completion(self) -> Completion:
        """The whole answer of a request that is not streamed."""
        if self._completion is None:
            raise RuntimeError("the exchange is a stream")
        return self._completion

    @property
    def usage(self) -> Usage:
        """What the request has cost so far."""
        if self._completion is not None:
            return self._completion.usage
        return self._stream.usage if self._stream is not None else Usage()

    async def next(self) -> Piece | None:
        """The stream's next piece, None at its regular end. Raises `UpstreamError` or `RequestError`."""
        if self._stream is None:
            raise RuntimeError("the exchange is not a stream")
        with self.watchdog.waiting(self._between_s, "the next chunk"):
            piece = await self._stream.next()
        if piece is not None and (isinstance(piece, Tokens) or piece.tokens):
            self._last_s = time.perf_counter()
            if self._first_s is None:
                self._first_s = self._last_s
            self._note_end(piece)
        return piece

    async def finish(self) -> None:
        """The regular end."""
        await self._close("ok")

    async def fail(self, error: BaseException) -> None:
        """Any other end; `asyncio.CancelledError` means that the client left or the gateway stops."""
        if isinstance(error, UpstreamError):
            self._broken(error)
        await self._close(error_type(error))

    def _note_end(self, piece: Piece) -> None:
        if isinstance(piece, Tokens) and piece.finish_reason is not None:
            self._finish_reasons += (piece.finish_reason,)

    def _broken(self, error: UpstreamError) -> None:
        """The upstream failed after its first byte."""
        replica, observer = self._replica, self._observer
        if replica is None or observer is None:
            return
        _log.warning("%s: %s %s", replica.name, error, error.detail)
        observer.upstream_failed(endpoint=replica.name, error=type(error).__name__)
        # An answer that runs beyond the total is long, which says nothing of the server's health.
        if isinstance(error, UpstreamUnavailable | UpstreamTimeout) and not self.watchdog.over:
            replica.failed(time.monotonic())

    # What the director tells an exchange, in this order.

    def decided(self, pair: str, decision: Decision, observer: Observer, span: Span, lesson: Lesson | None) -> None:
        self._pair, self._decision, self._observer, self._span = pair, decision, observer, span
        self._lesson = lesson

    def trace_headers(self) -> tuple[tuple[str, str], ...]:
        return self._span.headers() if self._span is not None else ()

    def attempt(self, decision: Decision, backend: Backend, replica: Replica) -> None:
        self._decision, self._backend, self._replica = decision, backend, replica
        self._attempts += 1
        self._stops = replica.stops
        self._since = replica.acquire(decision.draft_length, time.perf_counter(), standing=decision.standing)

    def attempt_failed(self, error: SlipstreamError) -> None:
        replica, self._replica = self._replica, None
        if replica is not None:
            _log.warning("%s: %s %s", replica.name, error, getattr(error, "detail", ""))
            until = self._release(replica)
            if self.decision.arm is Arm.SPECULATIVE:  # the client may never hear of it; whoever guards the arm must
                self._teach(error_type(error), self._times(until.time_s), until)
            if isinstance(error, UpstreamUnavailable | UpstreamTimeout):
                replica.failed(time.monotonic())

    def answered(self, answer: Completion | Stream) -> None:
        if isinstance(answer, Completion):
            self._completion = answer
            for piece in answer.pieces:
                self._note_end(piece)
        else:
            self._stream = answer
        if self._replica is not None:
            self._replica.succeeded()

    def _release(self, replica: Replica) -> Occupancy:
        decision = self.decision
        return replica.release(decision.draft_length, time.perf_counter(), standing=decision.standing)

    async def _close(self, status: str) -> None:
        on_close, self._on_close = self._on_close, None
        if on_close is None:
            return
        self.watchdog.close()
        ended_s = time.perf_counter()
        until: Occupancy | None = None
        try:
            if self._stream is not None:
                await self._stream.aclose()
        finally:
            if self._replica is not None:
                until = self._release(self._replica)
            on_close()
            self._record(status, self._times(ended_s), until)

    def _times(self, ended_s: float) -> Times:
        ttft_s = tpot_s = None
        if self._first_s is not None:
            ttft_s = self._first_s - self._started_s
            output_tokens = self.usage.output_tokens
            # Several choices share the time, and their tokens come summed up: there is no time per token to tell.
            if output_tokens > 1 and self.request.n == 1:
                tpot_s = (self._last_s - self._first_s) / (output_tokens - 1)
        return Times(ended_s - self._started_s, ttft_s, tpot_s)

    def _record(self, status: str, times: Times, until: Occupancy | None) -> None:
        if self._observer is None or self._span is None:
            return  # it ended before there was a decision
        usage = self.usage
        outcome = Outcome(
            pair=self._pair,
            model=self.request.model,
            decision=self.decision,
            status=status,
            e2e_s=times.e2e_s,
            ttft_s=times.ttft_s,
            tpot_s=times.tpot_s,
            usage=usage,
            finish_reasons=self._finish_reasons,
        )
        self._observer.record(outcome)
        self._span.end(outcome)
        self._teach(status, times, until)

    def _teach(self, status: str, times: Times, until: Occupancy | None) -> None:
        """Tells of the attempt that just ended; of one that failed where others go by that."""
        lesson, backend, since = self._lesson, self._backend, self._since
        if lesson is None or backend is None or since is None or until is None:
            return
        decision, usage, limit = self.decision, self.usage, self.request.max_tokens
        if not self._is_whole and (decision.arm is not Arm.SPECULATIVE or status not in _FAILURES):
            return
        lesson.tell(
            decision=decision,
            backend=backend,
            status=status,
            usage=usage,
            times=times,
            batch=Batch.between(since, until, draft_length=decision.draft_length),
            cut=not _CUT.isdisjoint(self._finish_reasons) or (limit is not None and usage.output_tokens >= limit),
        )

    @property
    def _is_whole(self) -> bool:
        """Whether the answer tells how long one takes. Not one of several attempts; not one whose tokens were counted
        by events, as an event may hold several; not one that was told half-way to go on plainly."""
        replica = self._replica
        stopped = replica is not None and replica.stops != self._stops and self.decision.draft_length > 0
        return self._attempts == 1 and self.usage.exact and not stopped


_CUT = frozenset({"length", "cancelled"})
# What a server may be blamed for.
_FAILURES = frozenset({"overloaded", "upstream_timeout", "upstream_unavailable", "upstream_failed"})
_TYPES: tuple[tuple[type[BaseException], str], ...] = (
    (asyncio.CancelledError, "cancelled"),
    (RequestError, "invalid_request"),
    (ClientTimeout, "client_timeout"),
    (Overloaded, "overloaded"),
    (UpstreamTimeout, "upstream_timeout"),
    (UpstreamUnavailable, "upstream_unavailable"),
    (UpstreamFailed, "upstream_failed"),
)


def error_type(error: BaseException) -> str:
    """A name from a closed set, fit for a metric's label."""
    for kind, name in _TYPES:
        if isinstance(error, kind):
            return name
    return "internal"


def rejection(error: BaseException) -> str:
    """Why there was no decision: `error_type`, with the causes kept apart that only arise before one."""
    if isinstance(error, ModelNotFound):
        return "model_not_found"
    return "unsupported_parameter" if isinstance(error, UnsupportedParameter) else error_type(error)
