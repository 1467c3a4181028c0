"""The contract between the request path and an upstream server.

An upstream is one replica. `complete` runs a request to its end. `open` starts a stream and returns when its first
piece has arrived, so that any earlier failure can still be retried elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple, Protocol

import msgspec
from msgspec import Meta
from slipstream_core.types import GenerationRequest, Withheld

from slipstream_gateway.upstreams.carrier import Carrier

MAX_COUNT = 2**31 - 1
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
"""A number of tokens or steps as reported by an upstream. A value out of bounds is an error of the upstream."""
DraftLength = Annotated[int, Meta(ge=0, le=4096)]
MAX_ENGINE_S = 100_000.0


def engine_seconds(reported: object) -> float | None:
    """The engine's time of an answer as reported by an upstream, in seconds to the microsecond. None if it is missing
    or invalid: not a number, negative, or more than a day. An invalid value does not fail the answer."""
    if isinstance(reported, bool) or not isinstance(reported, (int, float)):
        return None
    return round(float(reported), 6) if 0.0 <= reported <= MAX_ENGINE_S else None


class Committed(msgspec.Struct, frozen=True, kw_only=True):
    """The part of an answer that the client already has from another server: its tokens or, if that server reported no
    ids, its `text`. `output_tokens` is the count as far as known, `most_output_tokens` as in `Usage`; `prompt_tokens`
    is 0 if unknown. `answer_id` and `created` are those that the client has received, if the server generated them.
    `resumed` has the cause of each earlier server's loss."""

    token_ids: tuple[int, ...] = ()
    text: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    most_output_tokens: int = 0
    answer_id: str = ""
    created: int = 0
    resumed: tuple[str, ...] = ()


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One request for an upstream. `model` is the upstream's name for it; `draft_length` 0 means plain.

    `seeded`: the server gets the gateway's seed if the client set none. With `adaptive`, the draft length is a
    maximum: in each step the server verifies as many draft tokens as pay. Only servers with `Drafting.adaptive`
    can. Drafts of adaptive requests do not delay the tokens of a `protected` one; only servers with
    `Drafting.protects` see to it. `headers` are forwarded (authorization, trace context); names in lower case.
    `committed`: the answer continues after it, and its usage covers the whole answer: prompt and output count once,
    drafts and steps are those of this part. `deadline_s`, by `time.monotonic`, is when the client stops waiting.
    `request_class` is the decision's, for servers that count by class. `token_ids` requests the answer's token ids
    beside its text, if the server supports it; the client does not see them. `bounds_output`:
    `Usage.most_output_tokens` must be updated while the answer streams. `carrier`: a proxy sends the request to the
    server; None: the upstream itself.
    """

    request: GenerationRequest
    model: str
    draft_length: int
    request_id: str
    seeded: bool = False
    adaptive: bool = False
    protected: bool = False
    headers: tuple[tuple[str, str], ...] = ()
    committed: Committed | None = None
    deadline_s: float | None = None
    request_class: str = ""
    token_ids: bool = False
    bounds_output: bool = True
    carrier: Carrier | None = None


class Usage(msgspec.Struct, kw_only=True):
    """The cost of a request so far; an upstream updates it while the stream runs.

    `exact` is False if `output_tokens` was counted by stream events because the upstream reported nothing.
    `most_output_tokens` is an upper bound on the tokens generated so far: the reported number, plus `output_bound` of
    the answer since. `counted` is False if the upstream does not count drafts in such an answer; the zeros then mean
    nothing. `rejected_at[i]` counts the steps whose first rejected draft token was at position i. `engine_s` is the
    engine's time in seconds: for each step, the request's share of all rows; None if the upstream does not report it.
    `draft` is the name of the draft where the engine has several; empty otherwise.
    """

    prompt_tokens: int = 0
    output_tokens: int = 0
    most_output_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    rejected_at: tuple[int, ...] = ()
    exact: bool = True
    counted: bool = True
    engine_s: float | None = None
    draft: str = ""


def joined(before: Usage, now: Usage) -> Usage:
    """What an answer of two parts has cost. `now` counts prompt and output of the whole (see `Job`), unless it has not
    begun. The draft is empty if the parts had different ones."""
    width = max(len(before.rejected_at), len(now.rejected_at))
    rows = [row + (0,) * (width - len(row)) for row in (before.rejected_at, now.rejected_at)]
    return Usage(
        prompt_tokens=max(before.prompt_tokens, now.prompt_tokens),
        output_tokens=max(before.output_tokens, now.output_tokens),
        most_output_tokens=max(before.most_output_tokens, now.most_output_tokens),
        drafted=before.drafted + now.drafted,
        accepted=before.accepted + now.accepted,
        steps=before.steps + now.steps,
        rejected_at=tuple(map(sum, zip(*rows, strict=True))),
        exact=before.exact and now.exact,
        counted=before.counted and now.counted,
        engine_s=None if before.engine_s is None or now.engine_s is None else before.engine_s + now.engine_s,
        draft=before.draft if before.draft == now.draft else "",
    )


class Piece(msgspec.Struct, frozen=True, gc=False):
    """Bytes in OpenAI's form: whole SSE events, or a whole JSON body. `tokens` is False for a block without generated
    text (the role event). `token_ids` and `prompt_token_ids` are those of the block, if the job requested them;
    `finish_reasons` those of the choices that end in it."""

    data: bytes
    tokens: bool = True
    token_ids: tuple[int, ...] = ()
    prompt_token_ids: tuple[int, ...] = ()
    finish_reasons: tuple[str, ...] = ()


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer: its body and its cost."""

    body: Piece
    usage: Usage


class Drafting(NamedTuple):
    """The drafting state of a server at this moment. `withheld` is the reason why it may not draft, None if it
    may. `longest` is the maximum draft length that it accepts, None: no maximum. `limit` is a temporary limit on
    its drafts, None: no limit. `identity` is the rest of the server's description: a different identity means that
    it drafts differently. `adaptive`: see `Job`. `seed_equality`: a request with a seed gets the same sampled
    tokens at every draft length, so that an adaptive draft length does not change them. `resumes`: the answers
    that the server continues by their token ids: `greedy` ones alone, `seeded` ones too, or none (empty).
    `resumes_stops`: those with stop strings, too: the continuation has the text that was held back. `protects`: see
    `Job`."""

    withheld: Withheld | None = None
    longest: int | None = None
    limit: int | None = None
    identity: str = ""
    adaptive: bool = False
    seed_equality: bool = False
    resumes: str = ""
    resumes_stops: bool = False
    protects: bool = False

    def continues(self, request: GenerationRequest) -> bool:
        """Whether the server continues an answer to `request`, by its token ids, with the same tokens."""
        if request.stop and not self.resumes_stops:
            return False
        return self.is_seeded or (self.resumes == "greedy" and request.temperature == 0.0)

    @property
    def is_seeded(self) -> bool:
        """Whether a seed determines the tokens of an answer on all such servers, at no cost."""
        return self.resumes == "seeded"


ANY_DRAFT = Drafting()


class Stream(Protocol):
    """A running answer. The caller that opened it calls `aclose`, which cancels the upstream's work if that still
    runs."""

    @property
    def usage(self) -> Usage:
        """The cost of the answer so far."""
        ...

    async def next(self) -> Piece | None:
        """The next piece, or None at the regular end. Raises `UpstreamError`."""
        ...

    async def aclose(self) -> None: ...


class DraftStanding(msgspec.Struct, frozen=True):
    """What an engine with several drafts knows of one draft for the requests of a class (`group`).

    `state` is "promoted", "undecided" or "taken_back". `answers` is the number of answers with this draft. Old
    answers fade. `seconds_per_token` is the engine time, None before the first answer.
    """

    group: str
    draft: str
    state: str
    answers: int
    seconds_per_token: float | None


class Upstream(Protocol):
    """One replica of an inference server. Methods raise `UpstreamError`, `Overloaded` or `RequestError`.

    `gives_token_ids`: every server of this kind gives the token ids of its answers (see `Job.token_ids`). Of others a
    check finds out. `answers_probes`: `probe` is answered however busy the model is, so that a missing answer means a
    server that hangs.
    """

    gives_token_ids: bool
    answers_probes: bool

    @property
    def drafting(self) -> Drafting:
        """The drafting state as far as known. Fast, because every decision reads it."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash of all that determines an answer besides the request: target, number format, device and sampling rule.
        Servers with one fingerprint give equal answers to equal requests with equal seeds, up to rounding in half
        precision. Empty if the server does not promise that, or while it is unknown."""
        ...

    @property
    def scores(self) -> bool:
        """Whether the server scores the tokens of a prompt (`prompt_logprobs`), before temperature and filters."""
        ...

    @property
    def draft_standings(self) -> tuple[DraftStanding, ...]:
        """What the server's engine knows of its drafts; empty if it has no choice."""
        ...

    async def meet(self) -> None:
        """Waits for the server's description of itself (`drafting`) if it has none yet and should have one. Never
        raises."""
        ...

    async def complete(self, job: Job) -> Completion: ...

    async def open(self, job: Job) -> Stream: ...

    async def probe(self) -> None:
        """Returns when the replica can serve; raises `UpstreamError` otherwise."""
        ...

    async def is_same(self) -> bool:
        """Whether the process that responds to a probe now is the earlier one, by its description if it has one. Raises
        `UpstreamError` as `probe` does."""
        ...

    async def models(self) -> Mapping[str, int | None]:
        """The models that the server has loaded by their names, its LoRA adapters among them, each with its context:
        the maximum of prompt and answer in tokens, None if the server does not report it."""
        ...

    async def stop_drafting(self) -> None:
        """Makes all answers that the replica decodes for this model continue plainly from their next step, if the
        server supports that; their tokens are unchanged. Later requests draft as they specify. Has its own deadline."""
        ...

    async def aclose(self) -> None: ...
