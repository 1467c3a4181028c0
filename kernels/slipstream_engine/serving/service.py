"""An engine with its own thread. Requests may come from any thread; the step thread delivers the chunks."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream_engine.contract.protocol import MOST_STANDINGS, DraftStanding, EngineFacts, OnChunk
from slipstream_engine.contract.types import Chunk, GenerationRequest
from slipstream_engine.drafts.candidates import CandidateWatch
from slipstream_engine.drafts.sources import DraftSource
from slipstream_engine.errors import ClosedError, OverloadedError, RequestError
from slipstream_engine.serving.loading import load
from slipstream_engine.step.engine import Engine
from slipstream_engine.step.sequence import Sequence

if TYPE_CHECKING:
    from slipstream_engine.settings import EngineSettings
    from slipstream_engine.text.grammar import GrammarCompiler
    from slipstream_engine.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

ENGINE = "slipstream"


class EngineService:
    """Runs an engine's step loop. `on_chunk` callbacks run on the step thread and must not block. A callback that
    raises ends only its own request."""

    def __init__(self, engine: Engine, *, method: str = "") -> None:
        """`method` names the kind of its drafts."""
        self._engine = engine
        self.method = method
        self._wake = threading.Condition()
        self._arrived: list[Sequence | None] = []  # None: a `stop_drafting` call for the requests before it
        self._stops = 0
        self._draft_changes: list[tuple[str, DraftSource | None, str]] = []
        self._standings: tuple[DraftStanding, ...] = ()
        self._standings_wanted = False
        self._candidates: CandidateWatch | None = None
        self._cancelled: list[tuple[str, int]] = []  # ids may be reused, arrival numbers may not
        self._active: dict[str, tuple[int, OnChunk]] = {}  # request id to arrival number and callback
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="slipstream-engine", daemon=True)

    @classmethod
    def start(cls, settings: EngineSettings) -> EngineService:
        """Load an engine and start its thread.

        Raises:
            CheckpointError: see `load_engine`.
        """
        engine, loader = load(settings)
        service = cls(engine, method=settings.draft_kind)
        if settings.candidates is not None and engine.draft_names:
            service.watch(CandidateWatch(Path(settings.candidates), loader.load_added, service.change_draft))
        service.begin()
        return service

    def watch(self, candidates: CandidateWatch) -> None:
        """Start watching for drafts. `close` ends it."""
        self._candidates = candidates
        candidates.start()

    def begin(self) -> None:
        """Start the step thread."""
        self._thread.start()

    @property
    def tokenizer(self) -> Tokenizer:
        return self._engine.tokenizer

    @property
    def grammars(self) -> GrammarCompiler:
        return self._engine.grammars

    @property
    def context_tokens(self) -> int:
        """Maximum number of prompt and output tokens of a request."""
        return self._engine.context_tokens

    @property
    def is_alive(self) -> bool:
        """Whether the step thread runs."""
        return self._thread.is_alive()

    @property
    def limit(self) -> int | None:
        """The longest draft of any request from the next step on; None: no limit but the engine's own."""
        return self._engine.limit

    @limit.setter
    def limit(self, limit: int | None) -> None:
        self._engine.limit = limit

    @property
    def capacity(self) -> int:
        """The number of requests that run or wait at once."""
        return self._engine.capacity

    @property
    def stops(self) -> int:
        """Number of calls of `stop_drafting`."""
        return self._stops

    def facts(self) -> EngineFacts:
        """Name and capabilities of this engine."""
        return EngineFacts(
            engine=ENGINE,
            max_draft_length=self._engine.max_draft_tokens,
            context_tokens=self._engine.context_tokens,
            fingerprint=self._engine.fingerprint,
            drafts=self._engine.draft_names,
            draft_standings=self._latest_standings(),
        )

    def _latest_standings(self) -> tuple[DraftStanding, ...]:
        """The standings that the step thread computed for the last call. It now computes those for the next call."""
        with self._wake:
            self._standings_wanted = True
            self._wake.notify()
        return self._standings

    def submit(self, request: GenerationRequest, on_chunk: OnChunk, *, stops: int | None = None) -> None:
        """Queue a request. `on_chunk` receives its chunks until one has a finish reason.

        `stops` is the property's value when the request arrived. If `stop_drafting` was called since then, the request
        decodes plainly.

        Raises:
            RequestError: the request can never be served, or its id is in use.
            OverloadedError: the queue is full.
            ClosedError: `close` was called.
        """
        sequence = self._engine.prepare(request)
        with self._wake:
            if self._closing:
                raise ClosedError("the engine is shutting down")
            if request.request_id in self._active:
                raise RequestError(f"request id {request.request_id!r} is in use")
            if len(self._active) >= self._engine.capacity:
                raise OverloadedError(f"{len(self._active)} requests are running or waiting already")
            if stops is not None and stops != self._stops:
                sequence.stop_drafting()
            self._active[request.request_id] = (sequence.arrival, on_chunk)
            self._arrived.append(sequence)
            self._wake.notify()

    def cancel(self, request_id: str) -> None:
        """End a request within one step. Unknown ids are ignored, because the request may have just ended."""
        with self._wake:
            if request_id in self._active:
                self._cancelled.append((request_id, self._active[request_id][0]))
                self._wake.notify()

    def stop_drafting(self) -> int:
        """Turn drafting off for all submitted requests from their next step on; see `Engine.stop_drafting`. Returns
        their number at once."""
        with self._wake:
            self._stops += 1
            if not self._arrived or self._arrived[-1] is not None:
                self._arrived.append(None)
                self._wake.notify()
            return len(self._active)

    def change_draft(self, name: str, source: DraftSource | None, only: str = "") -> None:
        """See `Engine.change_draft`. Returns at once."""
        with self._wake:
            self._draft_changes.append((name, source, only))
            self._wake.notify()

    def close(self) -> None:
        """Stop the thread. Running requests end as cancelled."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._candidates is not None:
            self._candidates.close()
        if self._thread.ident is not None:  # begun
            self._thread.join()

    def _run(self) -> None:
        while self._take_in():
            try:
                chunks = self._engine.step()
            except Exception as exc:  # top of the loop: a failed pass must end its requests, not the server
                logger.exception("a step failed; its requests end with an error")
                chunks = self._engine.fail_all(f"the engine failed: {exc}")
            for chunk in chunks:
                self._deliver(chunk)
        for request_id in list(self._active):
            self._drop(request_id)

    def _take_in(self) -> bool:
        """Pass arrivals and cancellations to the engine; wait while there is nothing to do. Returns False to stop."""
        with self._wake:
            while not (self._has_work() or self._engine.busy or self._closing):
                self._wake.wait()
            changes, self._draft_changes = self._draft_changes, []
            wanted, self._standings_wanted = self._standings_wanted, False
            arrived, self._arrived = self._arrived, []
            cancelled, self._cancelled = self._cancelled, []
            closing = self._closing
        for change in changes:
            self._engine.change_draft(*change)
        if wanted:
            self._standings = tuple(self._engine.draft_standings[-MOST_STANDINGS:])
        for sequence in arrived:
            if sequence is None:
                self._engine.stop_drafting()
            else:
                self._engine.enqueue(sequence)
        for request_id, arrival in cancelled:
            if request_id in self._active and self._active[request_id][0] == arrival:
                self._drop(request_id)
        return not closing

    def _has_work(self) -> bool:
        return bool(self._arrived or self._cancelled or self._draft_changes or self._standings_wanted)

    def _drop(self, request_id: str) -> None:
        chunk = self._engine.cancel(request_id)
        if chunk is not None:
            self._deliver(chunk)

    def _deliver(self, chunk: Chunk) -> None:
        if chunk.request_id not in self._active:
            return
        _, on_chunk = self._active[chunk.request_id]
        if chunk.finish_reason is not None:
            self._forget(chunk.request_id)
        try:
            on_chunk(chunk)
        except Exception:  # a failing callback must not affect other requests
            logger.exception("the callback of request %s failed; the request is dropped", chunk.request_id)
            if chunk.finish_reason is None:
                self._engine.cancel(chunk.request_id)
                self._forget(chunk.request_id)

    def _forget(self, request_id: str) -> None:
        with self._wake:
            del self._active[request_id]
