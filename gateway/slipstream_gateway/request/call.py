"""The facts of one request on its way through the gateway: its input, its decision, and its cost so far."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import msgspec
from slipstream_core.errors import SlipstreamError
from slipstream_core.observation import ALSO_FAILURES, Content
from slipstream_core.types import ANONYMOUS, Arm, Caller, Decision, GenerationRequest

from slipstream_gateway.decide.route import NO_DRAWS
from slipstream_gateway.fleet.snapshot import ServedRoute
from slipstream_gateway.request.answer_copy import MAX_ANSWER_BYTES, AnswerCopy
from slipstream_gateway.request.candidates import Attempt
from slipstream_gateway.request.causes import FAILURES
from slipstream_gateway.request.content import content_of
from slipstream_gateway.request.deadlines import CallTimer
from slipstream_gateway.request.journal import Journal
from slipstream_gateway.request.observations import PendingObservation, Times
from slipstream_gateway.request.outcome import Outcome, Span
from slipstream_gateway.upstreams.base import Committed, Piece, Stream, Usage, joined
from slipstream_gateway.upstreams.carrier import Carrier

_NOTHING = Usage()


class Context(msgspec.Struct, frozen=True):
    """The data of a request besides its body. `authorization` is sent to HTTP upstreams unchanged. `deadline_s` is the
    client's deadline by `time.monotonic()`, None without a limit. `forwarded` has the request headers that the settings
    forward to upstreams. `carrier`: a proxy sends the request to its server, once; None: the gateway itself."""

    request_id: str
    authorization: str | None = None
    traceparent: str | None = None
    caller: Caller = ANONYMOUS
    deadline_s: float | None = None
    forwarded: tuple[tuple[str, str], ...] = ()
    carrier: Carrier | None = None


class Reply(Protocol):
    """The client's side of one answer. The errors of its methods are never an upstream's."""

    async def send(self, call: Call, piece: Piece) -> None:
        """Sends the next piece. Before the first one, `call.decision` and `call.journal` are those of the answer."""
        ...

    async def end(self, call: Call) -> None:
        """Sends the end, after the last piece; an answer may have none."""
        ...


class Drawn(Protocol):
    """A use of one answer beside its client: the answer is copied for it."""

    def wants_token_ids(self, call: Call, attempt: Attempt) -> bool:
        """Whether it uses the token ids of the answer of `attempt`."""
        ...

    def ended(self, call: Call) -> None:
        """Gets the recorded call with its copy, however it ended. Must be quick and must not raise."""
        ...


Before = Callable[["Call", ServedRoute], Drawn | None]
"""A step between the decision and the first attempt, which may draw the answer for a use of its own."""


class Call:
    """The facts of one request. `timer` bounds its waits. `request` has a seed once it is decided.

    `decision` is that of the attempt that returned the first byte, before it that of the latest attempt. `attempts`
    counts the attempts on servers, `runs` those of them that failed after the request had been sent and before the
    answer made progress. `stream` is the running part of the answer, `spent` the usage of the parts before it.
    `failure` is the error of the last failed attempt. `journal` records the part of a stream that the client has; None:
    the stream cannot resume. `committed` is that part of an interrupted stream. `resumed` has the cause of each
    interruption after which the stream resumed. `refused` is the observation of a request that a server of a new
    revision has refused. `copy` is that of the answer for `drawn`, None if that is empty. `fingerprint` is that of the
    server that began the answer. Times are by `time.perf_counter`.
    """

    __slots__ = (
        "attempt", "attempts", "committed", "context", "copy", "decision", "drawn", "draws", "entered_s", "failure",
        "fingerprint", "finish_reasons", "first_s", "journal", "last_s", "observation", "pair", "refused", "request",
        "resumed", "runs", "server", "span", "spent", "started_s", "status", "stream", "timer",
    )  # fmt: skip

    def __init__(self, request: GenerationRequest, context: Context, timer: CallTimer) -> None:
        self.request = request
        self.context = context
        self.timer = timer
        self.started_s = self.entered_s = time.perf_counter()
        self.pair = ""
        self.decision: Decision | None = None
        self.draws = NO_DRAWS
        self.observation: PendingObservation | None = None
        self.refused: PendingObservation | None = None
        self.span: Span | None = None
        self.attempt: Attempt | None = None
        self.attempts = self.runs = 0
        self.server = self.fingerprint = ""
        self.stream: Stream | None = None
        self.spent: Usage | None = None
        self.failure: SlipstreamError | None = None
        self.journal: Journal | None = None
        self.copy: AnswerCopy | None = None
        self.drawn: tuple[Drawn, ...] = ()
        self.committed: Committed | None = None
        self.resumed: tuple[str, ...] = ()
        self.finish_reasons: tuple[str, ...] = ()
        self.first_s: float | None = None
        self.last_s = 0.0
        self.status = ""

    @property
    def was_sent(self) -> bool:
        """Whether the request was sent to a server."""
        return self.attempts > 0

    @property
    def has_begun(self) -> bool:
        """Whether the answer has begun."""
        return self.stream is not None or self.spent is not None

    @property
    def usage(self) -> Usage:
        """The cost of the request so far, on all servers that returned a part of its answer."""
        if self.stream is None:
            return _NOTHING if self.spent is None else self.spent
        return self.stream.usage if self.spent is None else joined(self.spent, self.stream.usage)

    def draw(self, drawn: Drawn) -> None:
        """Copies the answer for `drawn`."""
        self.drawn += (drawn,)
        self.copy = self.copy or AnswerCopy()

    def note(self, piece: Piece) -> None:
        """Records the arrival of a piece of a stream."""
        if piece.tokens:
            self.last_s = time.perf_counter()
            if self.first_s is None:
                self.first_s = self.last_s
        self.note_end(piece)

    def note_end(self, piece: Piece) -> None:
        if piece.finish_reasons:
            self.finish_reasons += piece.finish_reasons

    def times(self) -> Times:
        """The times so far. The choices of a request share the time, and their tokens are added, so there is no time
        per token for several choices."""
        ttft_s = tpot_s = None
        if self.first_s is not None:
            ttft_s = self.first_s - self.started_s
            output_tokens = self.usage.output_tokens
            if output_tokens > 1 and self.request.choices == 1:
                tpot_s = (self.last_s - self.first_s) / (output_tokens - 1)
        return Times(time.perf_counter() - self.started_s, ttft_s, tpot_s)

    def outcome(self, decision: Decision, times: Times) -> Outcome:
        """The finished call as a value for recorders, without prompt and answer."""
        return Outcome(
            pair=self.pair,
            model=self.request.model,
            decision=decision,
            status=self.status,
            e2e_s=times.e2e_s,
            ttft_s=times.ttft_s,
            tpot_s=times.tpot_s,
            usage=self.usage,
            finish_reasons=self.finish_reasons,
            endpoint=self.request.endpoint,
            server=self.server,
            resumed=self.resumed,
            request_id=self.context.request_id,
            key_id=self.context.caller.key_id,
        )


_LENGTH = "length"
_REFUSED = "upstream_failed"


def observe_refusal(call: Call, times: Times) -> None:
    """Records that a new revision has refused the request of `call`, which the serving one has answered: a failure of
    the new one."""
    pending = call.refused
    if pending is None or call.status != "ok" or call.decision is None or call.attempt is None:
        return
    pending.record(
        decision=call.decision,
        backend=call.attempt.backend,
        status=_REFUSED,
        usage=_NOTHING,
        times=times,
        batch=call.attempt.batch,
        cut=False,
    )


def observe(call: Call, attempt: Attempt, status: str, times: Times) -> None:
    """Records an attempt that is closed, if it can be compared with others.

    Lengths are learnt from whole answers only. An answer does not count as whole after several attempts; if its tokens
    were counted by events, because an event may hold several; or if the server got the command to stop drafting. A
    speculative answer without draft counts has no number of steps. Failures are recorded nevertheless on arms and of
    revisions that are compared.
    """
    pending, decision, usage, limit = call.observation, attempt.decision, call.usage, call.request.max_tokens
    if pending is None:
        return
    speculative, compared = decision.arm is Arm.SPECULATIVE, decision.arm is not Arm.PLAIN or bool(pending.revision)
    whole = call.attempts == 1 and usage.exact and not attempt.was_stopped
    is_failure = status in FAILURES or (bool(pending.revision) and status in ALSO_FAILURES)
    if not (whole and (usage.counted or not speculative)) and not (compared and is_failure):
        return
    pending.record(
        decision=decision,
        backend=attempt.backend,
        status=status,
        usage=usage,
        times=times,
        batch=attempt.batch,
        cut=_LENGTH in call.finish_reasons or (limit is not None and usage.output_tokens >= limit),
        content=_content(call, pending) if status == "ok" else None,
    )


def _content(call: Call, pending: PendingObservation) -> Content | None:
    """The facts about the content of a whole answer, if it is compared with those of another revision."""
    copy = call.copy
    if not pending.is_measured or copy is None or copy.size_bytes() > MAX_ANSWER_BYTES:
        return None
    return content_of(call.request, copy.pieces)
