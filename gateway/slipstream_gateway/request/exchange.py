"""One request in flight: which attempt runs, what arrived when, and what to record when it is over."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from slipstream_core.errors import Overloaded, SlipstreamError, StreamInterrupted, UpstreamError, for_log
from slipstream_core.settings import Deadlines
from slipstream_core.types import Arm, Decision, GenerationRequest

from slipstream_gateway.request.attempt import Attempt
from slipstream_gateway.request.causes import FAILURES, cause_of, error_type
from slipstream_gateway.request.legs import Leg
from slipstream_gateway.request.lookout import Lookout
from slipstream_gateway.request.observing import Lesson, Times
from slipstream_gateway.request.outcome import Observer, Outcome, Span
from slipstream_gateway.request.resume import joined
from slipstream_gateway.request.watchdog import Watchdog, upstream_late, upstream_stalled
from slipstream_gateway.upstreams.base import Completion, Piece, Stream, Tokens, Usage
from slipstream_gateway.upstreams.pool import Batch, Replica

_LENGTH = "length"
_NOTHING = Usage()
_NO_LOOKOUT = contextlib.nullcontext()
_log = logging.getLogger(__name__)


class Continues(Protocol):
    """How a stream goes on where its server broke it off; see `failover.Continuation`."""

    patience_s: float
    stalls: bool
    note: Callable[[Piece], None] | None

    async def go_on(self, exchange: Exchange, broken: Attempt, error: SlipstreamError) -> bool: ...

    def close(self) -> None: ...


class Exchange:
    """Made by the director; the API reads pieces from it and closes it. Closing twice is harmless."""

    def __init__(
        self,
        *,
        request: GenerationRequest,
        started_s: float,
        watchdog: Watchdog,
        deadlines: Deadlines,
        on_close: Callable[[str], None],
        request_id: str = "",
        key_id: str = "",
    ) -> None:
        self.request = request
        self._request_id = request_id
        self._key_id = key_id
        self.watchdog = watchdog
        self.pair = ""
        self.resumed: tuple[str, ...] = ()
        self._started_s = started_s
        self._patience_s = deadlines.between_chunks_s
        self._late = upstream_late
        self._on_close: Callable[[str], None] | None = on_close
        self._decision: Decision | None = None
        self._observer: Observer | None = None
        self._span: Span | None = None
        self._lesson: Lesson | None = None
        self._attempt: Attempt | None = None
        self._attempts = 0
        self._server = ""
        self._completion: Completion | None = None
        self._stream: Stream | None = None
        self._continuation: Continues | None = None
        self._note: Callable[[Piece], None] | None = None
        self._lookout: Lookout | None = None
        self._spent: Usage | None = None
        self._finish_reasons: tuple[str, ...] = ()
        self._first_s: float | None = None
        self._last_s = 0.0

    @property
    def decision(self) -> Decision:
        """What the answer carries: the decision, or what became of it when another arm had to take over before the
        first byte."""
        if self._decision is None:
            raise RuntimeError("the exchange has no decision yet")
        return self._decision

    @property
    def is_decided(self) -> bool:
        """Whether there is a decision, so that the end is recorded as an outcome."""
        return self._decision is not None

    @property
    def was_sent(self) -> bool:
        """Whether a server was asked."""
        return self._attempts > 0

    @property
    def has_begun(self) -> bool:
        """Whether there is an answer, or the beginning of one."""
        return self._completion is not None or self._stream is not None or self._spent is not None

    @property
    def is_resumable(self) -> bool:
        """Whether the stream could go on elsewhere if its server broke it off."""
        return self._note is not None

    @property
    def lesson(self) -> Lesson | None:
        """What the request teaches; None where it is to teach nothing."""
        return self._lesson

    @property
    def lookout(self) -> AbstractContextManager[None]:
        """Belongs over a wait for the attempt that runs, until it has given its first piece."""
        lookout = self._attempt.lookout if self._attempt is not None else None
        return _NO_LOOKOUT if lookout is None else lookout

    @property
    def first_s(self) -> float | None:
        """When the first token came, by `time.perf_counter`."""
        return self._first_s

    @property
    def is_first_attempt(self) -> bool:
        """Whether one server gave, or is to give, all of the answer."""
        return self._attempts == 1

    @property
    def completion(self) -> Completion:
        """The whole answer of a request that is not streamed."""
        if self._completion is None:
            raise RuntimeError("the exchange is a stream")
        return self._completion

    @property
    def usage(self) -> Usage:
        """What the request has cost so far, over all servers that gave a part of its answer."""
        if self._completion is not None:
            return self._completion.usage
        now = self._stream.usage if self._stream is not None else _NOTHING
        return now if self._spent is None else joined(self._spent, now)

    async def next(self) -> Piece | None:
        """The stream's next piece, None at its regular end. Raises `UpstreamError` or `RequestError`."""
        while True:
            if self._stream is None:
                raise RuntimeError("the exchange is not a stream")
            try:
                with self.watchdog.waiting(self._patience_s, "the next chunk", self._late):
                    if self._lookout is None:
                        piece = await self._stream.next()
                    else:
                        with self._lookout:
                            piece = await self._stream.next()
                break
            except (UpstreamError, Overloaded) as exc:
                await self._broke_off(exc)
        if piece is not None:
            if self._note is not None:
                self._note(piece)
            if isinstance(piece, Tokens) or piece.tokens:
                self._last_s = time.perf_counter()
                if self._first_s is None:
                    self._first_s = self._last_s
                self._note_end(piece)
        return piece

    async def finish(self) -> None:
        """The regular end."""
        if self._attempt is not None:
            self._attempt.completed()
        await self._close("ok")

    async def fail(self, error: BaseException) -> None:
        """Any other end; `asyncio.CancelledError` means that the client left or the gateway stops."""
        await self._close(error_type(error))

    def _note_end(self, piece: Piece) -> None:
        if isinstance(piece, Tokens) and piece.finish_reason is not None:
            self._finish_reasons += (piece.finish_reason,)

    async def _broke_off(self, error: UpstreamError | Overloaded) -> None:
        """The upstream failed after its first byte: goes on elsewhere, or raises."""
        broken = self._attempt
        if broken is None or self._continuation is None:
            raise error
        try:
            await broken.close()
        finally:
            self.attempt_failed(error)
        if self.watchdog.over:  # an answer that runs beyond the total is long, and would be elsewhere
            raise error
        if not await self._continuation.go_on(self, broken, error):
            raise StreamInterrupted(error) from error

    # What the director tells an exchange, in this order.

    def decided(self, pair: str, decision: Decision, observer: Observer, span: Span, lesson: Lesson | None) -> None:
        self.pair, self._decision, self._observer, self._span = pair, decision, observer, span
        self._lesson = lesson

    def trace_headers(self) -> tuple[tuple[str, str], ...]:
        return self._span.headers() if self._span is not None else ()

    def attempt(self, leg: Leg, replica: Replica, lookout: Lookout | None = None) -> None:
        if self._stream is None and self._spent is None:
            self._decision = leg.decision
        self._attempts += 1
        self._server = replica.name
        self._attempt = Attempt(leg, replica, lookout)

    def attempt_failed(self, error: SlipstreamError) -> None:
        """The attempt that runs is over: whatever comes next is another one."""
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        batch = attempt.release()
        _log.warning("%s: %s", attempt.replica.name, for_log(error))
        if self._observer is not None:
            self._observer.upstream_failed(endpoint=attempt.replica.name, error=type(error).__name__)
        # The client may never hear of it; the operator compares the failures of both arms. Where all of the control's
        # servers fail, each of its requests tries them several times: that is one failure.
        arm = attempt.decision.arm
        if arm is Arm.SPECULATIVE or (arm is Arm.CONTROL and self._attempts == 1):
            self._teach(attempt, error_type(error), self._times(time.perf_counter()), batch)
        if isinstance(error, UpstreamError | Overloaded) and not self.watchdog.over:
            attempt.failed(cause_of(error))
        if self._stream is not None:
            self._spent, self._stream = self.usage, None

    def hand_over(self, attempt: Attempt, error: UpstreamError | Overloaded | None) -> None:
        """`attempt`, which ran beside the one that is known, goes on alone: the other was slower, or failed by
        `error`."""
        if error is not None:
            self.attempt_failed(error)
        elif self._attempt is not None:
            self._attempt.release()
        self._attempts += 1
        self._attempt, self._server = attempt, attempt.replica.name

    def answered(self, answer: Completion | Stream, continuation: Continues | None = None) -> None:
        """The attempt gave its whole answer, or the beginning of a stream that goes on as `continuation` says."""
        if isinstance(answer, Completion):
            self._completion = answer
            for piece in answer.pieces:
                self._note_end(piece)
            if self._attempt is not None:
                self._attempt.began(None)
            return
        self._continuation = continuation
        if continuation is not None:
            self._note, self._patience_s = continuation.note, continuation.patience_s
            self._late = upstream_stalled if continuation.stalls else upstream_late
        self.reopened(answer)

    def reopened(self, stream: Stream) -> None:
        """The attempt gave the beginning of a stream, the first one or one that goes on with it."""
        self._stream = stream
        if self._attempt is not None:
            self._attempt.began(stream)
            # Where it can go nowhere, it is better late than never.
            self._lookout = self._attempt.lookout if self._note is not None else None

    def resumption(self, cause: str, result: str) -> None:
        """A stream broke off by `cause`; `result` `resumed` means that it went on."""
        if result == "resumed":
            self.resumed += (cause,)
        if self._span is not None:
            self._span.broke_off(cause=cause, result=result, output_tokens=self.usage.output_tokens)

    async def _close(self, status: str) -> None:
        on_close, self._on_close = self._on_close, None
        if on_close is None:
            return
        self.watchdog.close()
        ended_s = time.perf_counter()
        attempt, batch = self._attempt, None
        try:
            if attempt is not None:
                await attempt.close()
        finally:
            if attempt is not None:
                batch = attempt.release()
            # It knows this exchange: what a client left unread would stay until a collection comes by.
            continuation, self._continuation = self._continuation, None
            if continuation is not None:
                continuation.close()
            on_close(status)
            self._record(status, self._times(ended_s), batch)

    def _times(self, ended_s: float) -> Times:
        ttft_s = tpot_s = None
        if self._first_s is not None:
            ttft_s = self._first_s - self._started_s
            output_tokens = self.usage.output_tokens
            # Several choices share the time, and their tokens come summed up: there is no time per token to tell.
            if output_tokens > 1 and self.request.choices == 1:
                tpot_s = (self._last_s - self._first_s) / (output_tokens - 1)
        return Times(ended_s - self._started_s, ttft_s, tpot_s)

    def _record(self, status: str, times: Times, batch: Batch | None) -> None:
        if self._observer is None or self._span is None:
            return  # it ended before there was a decision
        outcome = Outcome(
            pair=self.pair,
            model=self.request.model,
            decision=self.decision,
            status=status,
            e2e_s=times.e2e_s,
            ttft_s=times.ttft_s,
            tpot_s=times.tpot_s,
            usage=self.usage,
            finish_reasons=self._finish_reasons,
            endpoint=self.request.endpoint,
            server=self._server,
            resumed=self.resumed,
            request_id=self._request_id,
            key_id=self._key_id,
        )
        self._observer.record(outcome)
        self._span.end(outcome)
        if self._attempt is not None and batch is not None:
            self._teach(self._attempt, status, times, batch)

    def _teach(self, attempt: Attempt, status: str, times: Times, batch: Batch) -> None:
        """Tells of the attempt that just ended; of one that failed where others go by that."""
        lesson, decision, usage, limit = self._lesson, attempt.decision, self.usage, self.request.max_tokens
        if lesson is None:
            return
        # Not whole, it does not tell how long an answer takes: not of several attempts; not where tokens were counted
        # by events, as an event may hold several; not where it was told half-way to go on plainly. Of a speculative one
        # whose drafts were not counted nobody knows how many steps it took.
        speculative, compared = decision.arm is Arm.SPECULATIVE, decision.arm is not Arm.PLAIN
        whole = self._attempts == 1 and usage.exact and not attempt.was_stopped
        if not (whole and (usage.counted or not speculative)) and (not compared or status not in FAILURES):
            return
        lesson.tell(
            decision=decision,
            backend=attempt.backend,
            status=status,
            usage=usage,
            times=times,
            batch=batch,
            cut=_LENGTH in self._finish_reasons or (limit is not None and usage.output_tokens >= limit),
        )
