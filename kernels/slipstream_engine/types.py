"""Requests and results of an engine.

All values are immutable. Token ids are the target's, lengths count tokens, and times are in seconds.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class FinishReason(StrEnum):
    """Reason for the end of a request. `STOP` covers EOS and stop strings, `LENGTH` covers `max_tokens` and the
    context."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling parameters. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 turn the filters off.

    `seed` keys the counter-based noise: the same seed and prompt give the same tokens, whatever the draft length and
    the other requests in the batch.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to generate. `resume_ids` are output tokens committed elsewhere: the engine continues after them, and
    they count towards `max_tokens`. The continuation equals that of the earlier answer, sampled or not, at every draft
    length. `draft_tokens` is the draft length, 0 for plain decoding. With `adaptive` it is a maximum: in each step the
    engine verifies as many draft tokens as pay. `margins` requests the gap between the target's two best logits for
    each token. Requests of one `group` are alike: what an engine learns about drafts, it learns for
    each group."""

    request_id: str
    prompt_ids: tuple[int, ...]
    resume_ids: tuple[int, ...] = ()
    max_tokens: int
    sampling: SamplingParams = SamplingParams()
    stop: tuple[str, ...] = ()
    draft_tokens: int = 0
    adaptive: bool = False
    margins: bool = False
    group: str = ""


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of a request so far. `steps` counts the target's passes after the prompt. `rejected_at[i]` counts the steps
    whose first rejected draft token was at position i. `counted` is False if the number of drafted tokens is
    unknown; the fields after it, up to `rejected_at`, are then meaningless. `draft` is the name of the request's draft,
    empty where there is no choice. `engine_s` is the request's engine
    time: the sum over its passes of the pass time times the request's share of the rows. None if unknown."""

    prompt_tokens: int
    output_tokens: int
    counted: bool = True
    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    rejected_at: tuple[int, ...] = ()
    engine_s: float | None = None
    draft: str = ""


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """Output of one step for one request. `text` is a delta and never ends inside a character. Text that may become
    part of a stop string is held back, so `token_ids` can be ahead of `text`. The last chunk of a request has a
    `finish_reason`. With `FinishReason.ERROR` it also has a readable `error` and an `error_code`, as in `RequestError`.
    `margins` has, for each of `token_ids`, the gap between the target's two best logits before any filter; None unless
    requested."""

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
        """Whether this is the request's last chunk."""
        return self.finish_reason is not None
