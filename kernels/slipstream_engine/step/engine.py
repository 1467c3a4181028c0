"""The step loop: selects the requests of each pass, drafts, runs the target and verifies.

A step prefills part of the waiting prompts, then runs one pass over all decoding requests. A request with draft length
γ has γ + 1 tokens in that pass, and a plain request has 1, in one batch on one copy of the target. Requests join and
leave between steps (continuous batching, Yu et al., Orca, OSDI 2022). Each request keeps its own accepted tokens, so an
early rejection does not delay the others.
"""

from __future__ import annotations

import bisect
import itertools
import time
from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Sequence_

import torch
from slipstream_kernels.backend import Backend
from torch import Tensor

from slipstream_engine.contract.protocol import DraftStanding
from slipstream_engine.contract.request_checks import check_request
from slipstream_engine.contract.types import Chunk, GenerationRequest
from slipstream_engine.drafts.draft_allocation import DraftRows, kept
from slipstream_engine.drafts.pool import DraftPool
from slipstream_engine.drafts.sources import DraftRow, Drafts, DraftSource, Offer
from slipstream_engine.model.cache import SlotPool
from slipstream_engine.model.model import Model
from slipstream_engine.model.step_batch import Span
from slipstream_engine.step.engine_time import EngineTime
from slipstream_engine.step.row_adjustments import permitted
from slipstream_engine.step.sequence import Emitted, Sequence
from slipstream_engine.step.verification import Verifier
from slipstream_engine.text.grammar import GrammarCompiler
from slipstream_engine.text.tokenizer import Tokenizer

_SMOOTHING = 0.05  # weight of a new step in the mean number of tokens per step
_NO_OFFER = Offer([], copied=True)
NOT_FINITE = "the model produced logits that are not finite numbers"


class Engine:
    """Decodes requests with one target and the drafts of one pool. Not thread-safe: `EngineService` owns the thread.

    `max_draft_tokens` caps the draft length of a request, `max_waiting` bounds the queue, and `prefill_chunk_tokens`
    limits the prompt tokens that are read for each output token of the other requests' streams. `verify_backend` is
    passed to `verify`. `fingerprint` is that of `fingerprint_of`. `limit` bounds the draft length of every request from
    the next step on; any thread may set it.
    """

    def __init__(
        self,
        target: Model,
        tokenizer: Tokenizer,
        draft_source: DraftPool | None,
        *,
        slots: int,
        max_draft_tokens: int,
        max_waiting: int,
        prefill_chunk_tokens: int,
        verify_backend: Backend = "auto",
        fingerprint: str = "",
    ) -> None:
        self.tokenizer = tokenizer
        self.fingerprint = fingerprint
        self._verifier = Verifier(target.device, target.config.vocab_rows, verify_backend)
        self.context_tokens = target.context_tokens
        self._target, self._cache = target, target.new_cache(slots)
        self._draft_source = draft_source
        self.max_draft_tokens = max_draft_tokens if draft_source is not None else 0
        self.limit: int | None = None
        self._step_limit: int | None = None
        self.grammars = GrammarCompiler(tokenizer.definition, sorted(tokenizer.eos_ids), target.config.vocab_rows)
        self._max_waiting = max_waiting
        self._prefill_chunk_tokens = prefill_chunk_tokens
        self._pool = SlotPool(slots)
        self._engine_time = EngineTime(target.device)
        self._draft_rows = DraftRows()
        self._tokens_per_step = 1.0  # of a request that decodes, smoothed
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []  # slots ascending
        self._arrivals = itertools.count()

    @property
    def capacity(self) -> int:
        """Maximum number of running and waiting requests."""
        return self._cache.slots + self._max_waiting

    @property
    def draft_names(self) -> tuple[str, ...]:
        """The names of the drafts, if the engine has several, or may get more."""
        pool = self._draft_source
        return pool.names if pool is not None and pool.has_choice else ()

    @property
    def draft_standings(self) -> list[DraftStanding]:
        """What is known of several drafts, by groups."""
        return [] if self._draft_source is None or not self.draft_names else self._draft_source.standings()

    def change_draft(self, name: str, source: DraftSource | None, only: str = "") -> None:
        """Add the draft `name`. With `only` it is for that group of requests. Without a `source`, no more requests get
        the draft `name`."""
        if self._draft_source is not None and source is None:
            self._draft_source.retire(name)
        elif self._draft_source is not None and source is not None:
            self._draft_source.add(name, source, only)

    @property
    def busy(self) -> bool:
        """Whether there are running or waiting requests."""
        return bool(self._running or self._waiting)

    def prepare(self, request: GenerationRequest) -> Sequence:
        """Check a request and prepare it for the queue. Thread-safe.

        Raises:
            RequestError: the prompt is empty or fills the context, a token id is unknown, a stop string is unusable,
                a number is out of range, or the grammar is invalid.
        """
        check_request(request, context_tokens=self.context_tokens, vocabulary=self._target.config.vocab_rows)
        given = request.grammar
        grammar = None if given is None else self.grammars.compile(given, request.resume_ids)
        return Sequence(
            request,
            next(self._arrivals),
            self.tokenizer,
            context_tokens=self.context_tokens,
            max_draft_tokens=self.max_draft_tokens,
            grammar=grammar,
        )

    def enqueue(self, sequence: Sequence) -> None:
        """Queue a prepared request. The caller enforces `capacity`."""
        self._waiting.append(sequence)

    def add(self, request: GenerationRequest) -> None:
        """Prepare and queue a request.

        Raises:
            RequestError: see `prepare`.
        """
        self.enqueue(self.prepare(request))

    def cancel(self, request_id: str) -> Chunk | None:
        """Drop a request. Returns its last chunk, or None if there is no such request."""
        for sequence in self._running:
            if sequence.request.request_id == request_id:
                self._release(sequence)
                return sequence.cancelled()
        for sequence in self._waiting:
            if sequence.request.request_id == request_id:
                self._waiting.remove(sequence)
                return sequence.cancelled()
        return None

    def stop_drafting(self) -> None:
        """Turn drafting off for all running and waiting requests from the next step on. Later requests may draft.

        Answers do not change, greedy or sampled.
        """
        for sequence in (*self._running, *self._waiting):
            sequence.stop_drafting()

    def fail_all(self, error: str) -> list[Chunk]:
        """End every running request with `error` after a step that raised, because their caches may be invalid."""
        chunks = [sequence.failed(error) for sequence in self._running]
        for sequence in list(self._running):
            self._release(sequence)
        return chunks

    @torch.inference_mode()
    def step(self) -> list[Chunk]:
        """Prefill prompts, decode once, and return the new chunks, at most one per request."""
        self._step_limit = self.limit  # one value for the whole step, because another thread may change it
        if not self._running:
            self._engine_time.begin()
        self._admit()
        decoding = [sequence for sequence in self._running if sequence.prefilled]
        chunks = self._prefill(stream_on=bool(decoding))
        if decoding:
            chunks += self._decode(decoding)
        ended = {chunk.request_id for chunk in chunks if chunk.finish_reason is not None}
        for sequence in [s for s in self._running if s.request.request_id in ended]:
            if self._draft_source is not None and sequence.draft:
                self._draft_source.learn(sequence.slot, sequence.request.group, *sequence.decoded)
            self._release(sequence)
        return chunks

    def _protected_waits(self) -> list[str | None]:
        """The classes of plain protected requests that wait for their first token, by names of their own: drafts bring
        them nothing."""
        return [f"{s.request.group} waits" for s in self._running if not s.prefilled and s.is_plain_and_protected]

    def _admit(self) -> None:
        while self._waiting and len(self._pool):
            sequence = self._waiting.popleft()
            sequence.slot = self._pool.take()
            if self._draft_source is not None and sequence.draft_length:
                name = self._draft_source.start(sequence.slot, sequence.request.group)
                sequence.draft = name if self.draft_names else ""
            bisect.insort(self._running, sequence, key=lambda s: s.slot)

    def _release(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        written = min(len(sequence.tokens) + self.max_draft_tokens, self.context_tokens)
        self._cache.clear(sequence.slot, written)
        self._pool.give_back(sequence.slot)
        if self._draft_source is not None:
            self._draft_source.release(sequence.slot)

    def _prefill(self, *, stream_on: bool) -> list[Chunk]:
        """Prefill waiting prompts, oldest first, up to the token budget of one step.

        Steps that verify draft tokens are fewer and longer. Their budget is greater, so that a stream still waits for
        as many prompt tokens per output token, and prompts do not wait longer. A plain stream that is protected has
        one token per step.
        """
        is_plain = any(s.prefilled and s.is_plain_and_protected for s in self._running)
        tokens_per_step = 1.0 if is_plain else self._tokens_per_step
        budget = int(self._prefill_chunk_tokens * (tokens_per_step if stream_on else 4))
        chunks = []
        for sequence, share in _shares([s for s in self._running if not s.prefilled], budget):
            start, end = sequence.cached, sequence.cached + share
            hidden = self._forward([Span(sequence.slot, start, share)], sequence.tokens[start:end])
            if self._draft_source is not None and sequence.draft_length:
                self._draft_source.observe(sequence.slot, hidden)
                self._draft_source.prefill(sequence.slot, sequence.tokens, end)
            sequence.cached = end
            emitted: list[Emitted] = []
            if end == len(sequence.tokens):  # never true for a resumed answer, which has its first token
                # The token after the prompt is chosen like any plain token: by a verification without drafts.
                emitted = self._verifier.emitted(
                    self._target.logits(hidden[-1:]), [sequence], Drafts.none(1, self._target.device)
                )
            self._engine_time.charge([sequence], [share])
            chunks += [sequence.first(each) if each.ids else sequence.failed(NOT_FINITE) for each in emitted]
        return chunks

    def _decode(self, sequences: list[Sequence]) -> list[Chunk]:
        """One pass over `sequences` (slots ascending): draft, run the target, verify. The draft's time is charged to
        the drafting requests by their draft lengths, the target's time to all requests by their tokens in the pass."""
        began_s = time.perf_counter()
        offers = self._offers(sequences)
        models = self._models(sequences, offers)
        proposed, drafting_s = self._propose(sequences, offers, models, began_s)
        drafts = permitted(sequences, [self._most(sequence) for sequence in sequences], proposed)
        spans, fed = [], []
        drafted_s = time.perf_counter()
        own_drafts = proposed.proposed()
        rows = own_drafts if drafts is proposed else drafts.proposed()
        for sequence, ids in zip(sequences, rows, strict=True):
            spans.append(Span(sequence.slot, len(sequence.tokens) - 1, 1 + len(ids)))
            fed += [sequence.tokens[-1], *ids]
        hidden = self._forward(spans, fed)
        emitted = self._verifier.emitted(self._target.logits(hidden), sequences, drafts)
        self._engine_time.charge(sequences, [span.tokens for span in spans])
        self._observe(sequences, hidden.split([span.tokens for span in spans]), emitted)
        chunks = []
        for sequence, each, own_draft, count, offer in zip(
            sequences, emitted, own_drafts, drafts.lengths, offers, strict=True
        ):
            if not each.ids:
                chunks.append(sequence.failed(NOT_FINITE))
                continue
            own = sequence.log_odds[offer.copied]
            agreed = _common(own_draft, each.ids[:-1])  # the last token is not cached yet
            if self._draft_source is not None and own_draft:
                self._draft_source.commit(sequence.slot, agreed)
            if count and own_draft and agreed >= len(each.ids) - 1:  # not a draft of the grammar alone
                own = self._draft_rows.chances.learn(offer.evidence[:count], agreed, own)
            elif offer.evidence:
                own = kept(own)
            sequence.log_odds[offer.copied] = own
            chunks.append(sequence.step(each, count))
        tokens_per_step = sum(len(each.ids) for each in emitted) / len(emitted)
        self._tokens_per_step += _SMOOTHING * (tokens_per_step - self._tokens_per_step)
        self._draft_rows.note_step(
            len(sequences),
            len(sequences) + sum(drafts.lengths),
            time.perf_counter() - drafted_s,
            len(sequences) + sum(len(offer.evidence) for offer in offers),
        )
        self._note_drafting(models, offers, proposed.lengths, drafting_s)
        return chunks

    def _observe(self, sequences: list[Sequence], hidden: Sequence_[Tensor], emitted: list[Emitted]) -> None:
        """Show the draft source the target's output for the tokens that were fed and stay."""
        if self._draft_source is not None:
            for sequence, rows, each in zip(sequences, hidden, emitted, strict=True):
                if sequence.draft_length:
                    self._draft_source.observe(sequence.slot, rows[: len(each.ids)])

    def _offers(self, sequences: list[Sequence]) -> list[Offer]:
        """The draft tokens that each request could verify: of alternatives, those of which more will be accepted."""
        return [self._likeliest(sequence) if self._most(sequence) else _NO_OFFER for sequence in sequences]

    def _most(self, sequence: Sequence) -> int:
        """Maximum number of drafts of the request's next step."""
        limit = self._step_limit
        return sequence.draft_length if limit is None else min(limit, sequence.draft_length)

    def _likeliest(self, sequence: Sequence) -> Offer:
        source, chances = self._draft_source, self._draft_rows.chances
        offers = [] if source is None else source.offers(_draft_row(sequence, self._most(sequence)))
        own = sequence.log_odds
        return max(offers, key=lambda offer: chances.expected(offer.evidence, own[offer.copied]), default=_NO_OFFER)

    def _propose(
        self, sequences: list[Sequence], offers: list[Offer], models: list[int | None], began_s: float
    ) -> tuple[Drafts, dict[int, float]]:
        """The drafts, and the seconds that each draft source took by its number, the first one since `began_s`. They
        are charged to the requests of the source."""
        lengths = [self._most(s) for s in sequences]
        if any(s.adaptive and length for s, length in zip(sequences, lengths, strict=True)):
            lengths = self._draft_rows.lengths(
                [offer.evidence for offer in offers],
                [s.log_odds[offer.copied] for s, offer in zip(sequences, offers, strict=True)],
                [not s.adaptive for s in sequences],
                [offer.copied for offer in offers],
                {model for model in models if model is not None},
                [*(s.protected for s in sequences), *self._protected_waits()],
            )
        if self._draft_source is None or not any(lengths):
            return Drafts.none(len(sequences), self._target.device), {}
        parts = zip(sequences, lengths, offers, strict=True)
        rows = [_draft_row(sequence, length, copied=offer.copied) for sequence, length, offer in parts]
        seconds: dict[int, float] = {}

        def drafted(number: int, of_source: list[int]) -> None:
            self._engine_time.charge(sequences, of_source)
            seconds[number] = time.perf_counter() - began_s - sum(seconds.values())

        return self._draft_source.propose(rows, drafted), seconds

    def _models(self, sequences: list[Sequence], offers: list[Offer]) -> list[int | None]:
        """For each request, the number of the draft model whose passes its offer needs; None if it needs none."""
        pool = self._draft_source
        return [
            None if pool is None or offer.copied or not offer.evidence else pool.number(sequence.slot)
            for sequence, offer in zip(sequences, offers, strict=True)
        ]

    def _note_drafting(
        self, models: list[int | None], offers: list[Offer], lengths: list[int], seconds: dict[int, float]
    ) -> None:
        """Learn what the passes of each draft model cost. They could have made all draft tokens of `offers`."""
        for number in {model for model in models if model is not None}:
            rows = zip(models, lengths, offers, strict=True)
            own = [(length, len(offer.evidence)) for model, length, offer in rows if model == number]
            passes, possible = map(max, zip(*own, strict=True))
            self._draft_rows.note_drafting(passes, seconds.get(number, 0.0), possible, number)

    def _forward(self, spans: list[Span], token_ids: list[int]) -> Tensor:
        target = self._target
        batch = target.layout(spans)
        return target.forward(torch.tensor(token_ids, device=target.device), batch, self._cache)


def _common(draft: list[int], emitted: list[int]) -> int:
    """The number of first tokens of `draft` that were emitted."""
    pairs = zip(draft, emitted, strict=False)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(draft), len(emitted)))


def _draft_row(sequence: Sequence, most: int, *, copied: bool = False) -> DraftRow:
    return DraftRow(sequence.slot, sequence.tokens, most, sequence.adaptive, copied)


def _shares(sequences: list[Sequence], budget: int) -> Iterator[tuple[Sequence, int]]:
    """Divide a step's prompt tokens among the prompts. The oldest prompt gets half, or all if it is alone. The other
    prompts get the rest, the shortest first. A long prompt thus delays short ones by at most a factor of two."""
    if not sequences:
        return
    oldest = min(sequences, key=lambda s: s.arrival)
    others = sorted((s for s in sequences if s is not oldest), key=lambda s: s.unfed)
    for sequence in (oldest, *others):
        most = max(1, budget // 2) if sequence is oldest and others else budget
        share = min(most, sequence.unfed)
        if share <= 0:
            return
        budget -= share
        yield sequence, share
