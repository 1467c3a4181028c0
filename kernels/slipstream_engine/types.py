"""Values that cross the engine's border: what a caller asks for and what it gets back.

All are immutable. Token ids are the target's; lengths count tokens; times are seconds.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class FinishReason(StrEnum):
    """Why a request ended. `STOP` covers EOS and stop strings, `LENGTH` covers `max_tokens` and the context."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is chosen. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 filter nothing.

    `seed` keys the counter-based random numbers: the same seed and prompt give the same tokens, whoever else is
    in the batch.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to generate. `resume_ids` are output tokens that were already committed elsewhere: the engine
    continues after them, and they count towards `max_tokens`. Where they are an answer up to the end of a chunk, and
    all else is as it was for that answer, the rest is its rest, sampled or not. `draft_tokens` is the draft length, 0
    for plain. `margins` asks for how clearly the target preferred each token."""

    request_id: str
    prompt_ids: tuple[int, ...]
    resume_ids: tuple[int, ...] = ()
    max_tokens: int
    sampling: SamplingParams = SamplingParams()
    stop: tuple[str, ...] = ()
    draft_tokens: int = 0
    margins: bool = False


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """What a request cost so far. `steps` are passes of the target after the prompt; `rejected_at[i]` counts the
    steps whose first rejected draft token stood at position i. `counted` is False where the engine does not know how
    many tokens were drafted: the fields after it have no meaning then, up to `rejected_at`. `engine_s` is the engine's
    time: of each pass that the request took part in, the share that its rows have of all rows; None where it is not
    known."""

    prompt_tokens: int
    output_tokens: int
    counted: bool = True
    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    rejected_at: tuple[int, ...] = ()
    engine_s: float | None = None


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """What one step added to one request. `text` is a delta and never ends inside a character; text that may
    become part of a stop string is held back, so `token_ids` can be ahead of `text`. The last chunk of a request
    has a `finish_reason`; with `FinishReason.ERROR` it has an `error` that a person can read, and `error_code`, as in
    `RequestError`, says whose fault it is. `margins` has the gap
    between the target's two best logits, before any filter, where each of `token_ids` was chosen; None where the
    request did not ask."""

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    counts: Counts
    finish_reason: FinishReason | None = None
    error: str | None = None
    error_code: str = "internal"
    margins: tuple[float, ...] | None = None

    @property
    def last(self) -> bool:
        """Whether no more chunks follow."""
        return self.finish_reason is not None
