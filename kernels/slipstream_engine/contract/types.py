"""Requests and results of an engine.

All values are immutable. Token ids are the target's, lengths count tokens, and times are in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    """Sampling parameters. `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 turn the filters off.

    `seed` keys the counter-based noise: the same seed and prompt give the same tokens, whatever the draft length and
    the other requests in the batch.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0


class Penalties(msgspec.Struct, frozen=True, kw_only=True):
    """Penalties for tokens of the answer so far. `repetition` counts those of the prompt, too; 1 turns it off."""

    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """The log-probability of a token of the answer, before adjustments, temperature and filters. `best`: the likeliest
    tokens at its position, as many as requested, with theirs."""

    token_id: int
    logprob: float
    best: tuple[tuple[int, float], ...]


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to generate. `resume_ids` are output tokens committed elsewhere: the engine continues after them, and
    they count towards `max_tokens`. The continuation equals that of the earlier answer, sampled or not, at every draft
    length. `draft_tokens` is the draft length, 0 for plain decoding. With `adaptive` it is a maximum: in each step the
    engine verifies as many draft tokens as pay. Drafts of adaptive requests do not delay the tokens of `protected`
    ones, class by class. Requests of one `group`, or class, are alike: what an engine learns about drafts, it learns
    for each group.

    `stop_ids` end the answer as EOS does. `ignore_eos` lets it go on after EOS, except where a grammar ends. Neither
    ends an answer of fewer than `min_tokens`. `logit_bias` is added to logits by token id. `logprobs` requests the
    log-probability of each token, with those of that many likeliest tokens. `grammar` constrains the answer (see
    `grammar`). Adjustments hold with drafts and without: the answer is the same."""

    request_id: str
    prompt_ids: tuple[int, ...]
    resume_ids: tuple[int, ...] = ()
    max_tokens: int
    sampling: SamplingParams = SamplingParams()
    stop: tuple[str, ...] = ()
    draft_tokens: int = 0
    adaptive: bool = False
    protected: bool = False
    group: str = ""
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    penalties: Penalties | None = None
    logit_bias: dict[int, float] = {}
    logprobs: int | None = None
    grammar: str | None = None


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of a request so far. `steps` counts the target's passes after the prompt. `draft` is the name of the
    request's draft, empty where there is no choice. `engine_s` is the request's engine time: the sum over its passes of
    the pass time times the request's share of the rows. None if unknown. `drafted_by_step` and `accepted_by_step` have
    the draft tokens of each pass that verified some; only in the last chunk."""

    prompt_tokens: int
    output_tokens: int
    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    engine_s: float | None = None
    draft: str = ""
    drafted_by_step: tuple[int, ...] = ()
    accepted_by_step: tuple[int, ...] = ()


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """Output of one step for one request. `text` is a delta and never ends inside a character. Text that may become
    part of a stop string is held back, so `token_ids` can be ahead of `text`. The last chunk of a request has a
    `finish_reason`. With `FinishReason.ERROR` it also has a readable `error`. `logprobs` has the log-probability of
    each of `token_ids`; None unless requested."""

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    counts: Counts
    finish_reason: FinishReason | None = None
    error: str | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None

    @property
    def last(self) -> bool:
        """Whether this is the request's last chunk."""
        return self.finish_reason is not None


def merge_chunks(chunks: Sequence[Chunk]) -> Chunk:
    """Combine `chunks` of one answer, in order and not empty, into one."""
    return msgspec.structs.replace(
        chunks[-1],
        text="".join([chunk.text for chunk in chunks]),
        token_ids=tuple([token_id for chunk in chunks for token_id in chunk.token_ids]),
        logprobs=_merged([chunk.logprobs for chunk in chunks]),
    )


def _merged(parts: Sequence[Iterable[TokenLogprob] | None]) -> tuple[TokenLogprob, ...] | None:
    """None if all `parts` are: the last one is also None where the answer fails or is cancelled."""
    given = [part for part in parts if part is not None]
    return tuple([each for part in given for each in part]) if given else None
