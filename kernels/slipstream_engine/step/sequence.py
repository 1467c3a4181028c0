"""The state of one running request. Only the step loop changes it."""

from __future__ import annotations

from typing import NamedTuple

from slipstream_engine.contract.types import Chunk, Counts, FinishReason, GenerationRequest, TokenLogprob
from slipstream_engine.errors import RequestError
from slipstream_engine.text.grammar import GrammarState
from slipstream_engine.text.text_stream import TextStream
from slipstream_engine.text.tokenizer import Tokenizer


class Emitted(NamedTuple):
    """Tokens that one verification emits for a request. `logprobs` has one entry per token; None unless requested."""

    ids: list[int]
    logprobs: tuple[TokenLogprob, ...] | None = None


class Sequence:
    """A request with its tokens so far, the number of cached tokens, and its costs.

    `tokens` is prompt + resumed + generated. While decoding, all tokens except the last are cached. `arrival` is a
    unique number within the engine. `engine_s` is the request's engine time in seconds. `draft` is the name of its
    draft where there are several. `log_odds` is how much likelier this request's draft tokens are accepted than those
    of others (see `draft_allocation.Chances`), by `Offer.copied`. `grammar` is that of the answer after its tokens so
    far.

    Raises RequestError if a stop string is unusable or the resumed tokens are a finished answer.
    """

    def __init__(
        self,
        request: GenerationRequest,
        arrival: int,
        tokenizer: Tokenizer,
        *,
        context_tokens: int,
        max_draft_tokens: int,
        grammar: GrammarState | None = None,
    ) -> None:
        self.request, self.arrival = request, arrival
        self.slot = -1  # until it is admitted
        self.tokens = [*request.prompt_ids, *request.resume_ids]
        self.cached = 0
        self._end = min(len(request.prompt_ids) + request.max_tokens, context_tokens)
        self.grammar = grammar
        own_end = frozenset() if request.ignore_eos and grammar is None else tokenizer.eos_ids
        self._eos_ids = own_end.union(request.stop_ids)
        self._text = TextStream(
            tokenizer, request.stop, prompt_tail_ids=request.prompt_ids, resume_ids=request.resume_ids
        )
        if self._text.stopped or not self._eos_ids.isdisjoint(request.resume_ids):
            raise RequestError("resume_ids already hold a stop string or EOS: there is nothing to continue")
        self._drafted = self._accepted = self._steps = 0
        self.engine_s = 0.0
        self.draft = ""
        self._first_s = 0.0  # engine time up to the first token
        self.log_odds = [0.0, 0.0]
        self._max_drafts = min(request.draft_tokens, max_draft_tokens)
        self._drafted_by_step: list[int] = []
        self._accepted_by_step: list[int] = []

    @property
    def adaptive(self) -> bool:
        """Whether the engine may verify fewer draft tokens than the draft length."""
        return self.request.adaptive

    @property
    def protected(self) -> str | None:
        """The class whose tokens drafts do not delay, None if they may."""
        return self.request.group if self.request.protected else None

    @property
    def is_plain_and_protected(self) -> bool:
        return self.request.protected and not self._max_drafts

    @property
    def prefilled(self) -> bool:
        """Whether all tokens except the last are cached, so that the request can decode."""
        return self.cached == len(self.tokens) - 1 and len(self.tokens) > len(self.request.prompt_ids)

    @property
    def unfed(self) -> int:
        """Number of tokens to prefill before decoding. A prompt is prefilled as a whole, because its last position
        gives the first token. A resumed answer is prefilled except for its last token, with which it decodes."""
        return len(self.tokens) - self.cached - (1 if self.request.resume_ids else 0)

    @property
    def draft_length(self) -> int:
        """Maximum number of drafts of the next step. One of the remaining tokens is the target's own."""
        return max(0, min(self._max_drafts, self._end - len(self.tokens) - 1))

    @property
    def decoded(self) -> tuple[float, int]:
        """The engine time in seconds and the tokens of the steps after the first token. No tokens if drafting was
        stopped meanwhile, or if the answer was resumed, since its time is not that of its draft alone."""
        whole = self._max_drafts and not self.request.resume_ids
        tokens = len(self.tokens) - len(self.request.prompt_ids) - 1
        return self.engine_s - self._first_s, tokens if whole else 0

    @property
    def output_tokens(self) -> int:
        """Number of tokens of the answer so far."""
        return len(self.tokens) - len(self.request.prompt_ids)

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end the answer."""
        return self._eos_ids

    def stop_drafting(self) -> None:
        """Decode plainly from the next step on. The draft's cache stays until the slot is released."""
        self._max_drafts = 0

    def first(self, emitted: Emitted) -> Chunk:
        """Add the token of the prompt's last position."""
        self.cached = len(self.tokens)
        self._first_s = self.engine_s
        return self._extend(emitted)

    def step(self, emitted: Emitted, drafted: int) -> Chunk:
        """Add the tokens of one verification of `drafted` draft tokens: the accepted ones and one token of the
        target."""
        accepted = len(emitted.ids) - 1
        self.cached = len(self.tokens) + accepted
        self._steps += 1
        self._drafted += drafted
        return self._extend(emitted, accepted, drafted)

    def cancelled(self) -> Chunk:
        """The last chunk of a cancelled request."""
        return self._chunk("", (), FinishReason.CANCELLED)

    def failed(self, error: str) -> Chunk:
        """The last chunk of a failed request."""
        return self._chunk("", (), FinishReason.ERROR, error)

    def _extend(self, emitted: Emitted, accepted: int = 0, drafted: int = 0) -> Chunk:
        kept, finish = self._until_eos(emitted.ids)
        text_ids = kept[:-1] if finish is FinishReason.STOP else kept
        delta = self._text.push(text_ids)
        text = delta.text
        if delta.stopped:
            kept, finish = kept[: delta.used], FinishReason.STOP
        elif finish is not None or len(self.tokens) + len(kept) >= self._end:
            text += self._text.flush()
            finish = FinishReason.STOP if self._text.stopped else finish or FinishReason.LENGTH
        self._accepted += min(accepted, len(kept))
        if drafted:
            self._drafted_by_step.append(drafted)
            self._accepted_by_step.append(min(accepted, len(kept)))
        self.tokens += kept
        if self.grammar is not None and finish is None:
            self.grammar.accept(kept)
        logprobs = emitted.logprobs
        return self._chunk(text, tuple(kept), finish, logprobs=logprobs and logprobs[: len(kept)])

    def _until_eos(self, token_ids: list[int]) -> tuple[list[int], FinishReason | None]:
        for index, token in enumerate(token_ids):
            if token in self._eos_ids:
                return token_ids[: index + 1], FinishReason.STOP
        return token_ids, None

    def _chunk(
        self,
        text: str,
        token_ids: tuple[int, ...],
        finish: FinishReason | None,
        error: str | None = None,
        logprobs: tuple[TokenLogprob, ...] | None = None,
    ) -> Chunk:
        prompt = len(self.request.prompt_ids)
        counts = Counts(
            prompt_tokens=prompt,
            output_tokens=len(self.tokens) - prompt,
            drafted=self._drafted,
            accepted=self._accepted,
            steps=self._steps,
            engine_s=self.engine_s,
            draft=self.draft,
            drafted_by_step=() if finish is None else tuple(self._drafted_by_step),
            accepted_by_step=() if finish is None else tuple(self._accepted_by_step),
        )
        return Chunk(
            request_id=self.request.request_id,
            text=text,
            token_ids=token_ids,
            counts=counts,
            finish_reason=finish,
            error=error,
            logprobs=logprobs,
        )
