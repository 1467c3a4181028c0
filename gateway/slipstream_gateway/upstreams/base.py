"""The contract between the director and an upstream server.

An upstream is one replica. `complete` runs a request to its end; `open` starts a stream and returns when its first
piece has arrived, so that everything that fails before it can still be tried elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, NamedTuple, Protocol

import msgspec
from msgspec import Meta
from slipstream_core.types import GenerationRequest, Withheld

MAX_COUNT = 2**31 - 1
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
"""A number of tokens or steps as an upstream reports it: beyond the bounds it is a fault of the upstream's."""
DraftLength = Annotated[int, Meta(ge=0, le=4096)]
MAX_ENGINE_S = 100_000.0


def engine_seconds(told: object) -> float | None:
    """The engine's time of an answer as an upstream tells it, in seconds to the microsecond; None for none, and for
    what cannot be: not a number, below 0, more than a day. An answer is not worse for it."""
    if isinstance(told, bool) or not isinstance(told, (int, float)):
        return None
    return round(float(told), 6) if 0.0 <= told <= MAX_ENGINE_S else None


class Committed(msgspec.Struct, frozen=True, kw_only=True):
    """What the client has of an answer that another server began: its tokens, or, where no server told their ids, its
    `text`. `output_tokens` are counted as far as can be told, `most_output_tokens` as in `Usage`, `prompt_tokens` is 0
    where nobody said. `answer_id` and `created` are those that the client knows the answer by, where the server made
    them. `resumed` has a cause for each server that was lost."""

    token_ids: tuple[int, ...] = ()
    text: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    most_output_tokens: int = 0
    answer_id: str = ""
    created: int = 0
    resumed: tuple[str, ...] = ()


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One request as an upstream gets it. `model` is the upstream's name for it, `draft_length` 0 means plain.

    `margins` asks for `Tokens.margins`, where the upstream can tell. `headers` are passed on by HTTP upstreams
    (authorization, trace context); names in lower case. `committed`: the answer goes on after it, and what it says of
    its usage is of the whole: prompt and output count once, drafts and steps are those of this part.
    `deadline_s`, by `time.monotonic`, is when nobody waits for the answer any more. `request_class` is the decision's,
    for servers that count by it. `token_ids` asks for those of the answer beside its text, where the server can give
    them; the client does not see them. `bounds_output`: `Usage.most_output_tokens` is needed while the answer streams.
    """

    request: GenerationRequest
    model: str
    draft_length: int
    request_id: str
    headers: tuple[tuple[str, str], ...] = ()
    margins: bool = False
    committed: Committed | None = None
    deadline_s: float | None = None
    request_class: str = ""
    token_ids: bool = False
    bounds_output: bool = True


_TENSOR_FEATURES = frozenset({"n"})


def has_relayed_features(request: GenerationRequest) -> bool:
    """Whether a Triton model gets `request` as it came (`openai_request`), as its tensors have no place for something
    in it. The answer is in OpenAI's form then, and has no token ids."""
    return not request.features <= _TENSOR_FEATURES


class Usage(msgspec.Struct, kw_only=True):
    """What a request has cost so far; an upstream updates it while the stream runs.

    `exact` is False where `output_tokens` was counted by stream events because the upstream reported nothing.
    `most_output_tokens` is what can have been generated so far at the most: what the upstream reported, and what
    `output_bound` says of the answer since.
    `counted` is False where the upstream counts no drafts in such an answer: the zeros mean nothing.
    `rejected_at[i]` counts the steps whose first rejected draft token stood at position i. `engine_s` is the engine's
    time in seconds: of each step, the share that the request's rows had of all rows; None where the upstream does not
    tell it.
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


def sum_known(parts: Iterable[float | None]) -> float | None:
    """The sum of the engine's time over the parts of an answer; None where that of one is not known."""
    known = tuple(parts)
    return None if None in known else sum(part for part in known if part is not None)


def joined(before: Usage, now: Usage) -> Usage:
    """What an answer of two parts has cost. `now` counts prompt and output of the whole (see `Job`), unless it has not
    begun."""
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
        engine_s=sum_known((before.engine_s, now.engine_s)),
    )


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """What one step added to choice `index`, to be rendered as OpenAI's JSON. The choice's last one has a
    `finish_reason` (`stop` or `length`). `margins` is the gap between the target's two best logits at
    each of `token_ids`; empty where nobody asked."""

    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    margins: tuple[float, ...] = ()


class Wire(msgspec.Struct, frozen=True):
    """Bytes in OpenAI's form already: whole SSE events, or a whole JSON body. `tokens` is False for a block that
    carries no generated text (the role event). `token_ids` and `prompt_token_ids` are those that came with it, where
    the job asked for them."""

    data: bytes
    tokens: bool = True
    token_ids: tuple[int, ...] = ()
    prompt_token_ids: tuple[int, ...] = ()


Piece = Wire | Tokens


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer: one `Wire` body, or one final `Tokens` per choice, in order of index."""

    pieces: tuple[Piece, ...]
    usage: Usage


class TokenScore(NamedTuple):
    """One token under the target: its natural log-probability, its rank (1: the most likely), and the
    log-probabilities of the most likely tokens there, highest first."""

    logprob: float
    rank: int
    top: tuple[float, ...]


class Drafting(NamedTuple):
    """What a server can draft at this moment. `withheld` says why it may not draft at all, None that it may; `longest`
    is the longest draft that it takes, None: any that is asked for. `limit` bounds its drafts for now, None: nothing
    does. `identity` is what it says of itself beyond that: another one drafts in another way."""

    withheld: Withheld | None = None
    longest: int | None = None
    limit: int | None = None
    identity: str = ""


ANY_DRAFT = Drafting()


class Stream(Protocol):
    """A running answer. Who opened it calls `aclose`, which cancels the work upstream if it still runs."""

    @property
    def usage(self) -> Usage:
        """What the answer has cost so far."""
        ...

    async def next(self) -> Piece | None:
        """The next piece, or None at the regular end. Raises `UpstreamError`."""
        ...

    async def aclose(self) -> None: ...


class Upstream(Protocol):
    """One replica of an inference server. Methods raise `UpstreamError`, `Overloaded` or `RequestError`.

    `gives_token_ids`: every server of this kind gives the token ids of its answers (see `Job.token_ids`). Of others a
    check finds out. `sends_tokens`: its pieces are `Tokens`, the same in a stream and in one piece; else they are bytes
    in OpenAI's form. `answers_probes`: `probe` is answered however busy the model is, so that a missing answer means a
    server that hangs.
    """

    gives_token_ids: bool
    sends_tokens: bool
    answers_probes: bool

    @property
    def drafting(self) -> Drafting:
        """What it can draft, by what is known now. Quick: it is read for every decision."""
        ...

    async def complete(self, job: Job) -> Completion: ...

    async def open(self, job: Job) -> Stream: ...

    async def probe(self) -> None:
        """Returns when the replica can serve; raises `UpstreamError` otherwise."""
        ...

    async def stop_drafting(self) -> None:
        """Lets all that the replica decodes for this model go on plainly from its next step, where it can be told so;
        an answer's tokens stay those of the target. What is asked for afterwards drafts as it says. Has a deadline of
        its own."""
        ...

    async def score(
        self,
        prompt_token_ids: Sequence[int],
        answer_token_ids: Sequence[int],
        *,
        model: str,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> tuple[TokenScore, ...]:
        """How likely the target finds each token of an answer, before temperature and filters. Raises `Incomparable`
        where the server cannot say it."""
        ...

    async def aclose(self) -> None: ...
