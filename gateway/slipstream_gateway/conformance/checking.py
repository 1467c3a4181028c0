"""One check of one server: it sends the probes to both arms, has the plain side score sampled answers, and judges the
results.

Answers of the plain arm are the reference. With one pool for both arms they come from the same server, at draft length
0.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

import msgspec
from slipstream_core.errors import Incomparable, RequestError, UpstreamRejected, UpstreamUnavailable, for_log
from slipstream_core.manifest.dialects import DIALECTS, Dialect
from slipstream_core.manifest.table import Backend
from slipstream_core.types import GenerationRequest

from slipstream_gateway.conformance.all_of import all_of
from slipstream_gateway.conformance.probes import (
    ProbeAnswer,
    greedy_requests,
    openai_alone,
    read_answer,
    sampled_requests,
)
from slipstream_gateway.conformance.verdict import (
    Finding,
    GreedyPair,
    Result,
    Subject,
    first_difference,
    judge_dialect,
    judge_draft_length,
    judge_greedy,
    judge_sampled,
)
from slipstream_gateway.upstreams.base import Job, TokenScore
from slipstream_gateway.upstreams.pool import Replica

AT_ONCE = 4
"""Maximum number of concurrent probes: a server completes a check in a few batches and has capacity left for
requests."""
Form = Callable[[GenerationRequest], GenerationRequest]
_T = TypeVar("_T")


class Side(NamedTuple):
    """A server as one arm of the check."""

    replica: Replica
    backend: Backend
    draft_length: int


class Check:
    """The check of the `speculative` side against the `plain` one; `seed` is that of the first sampled probe, `at_once`
    the maximum number of concurrent probes."""

    def __init__(self, *, speculative: Side, plain: Side, seed: int, at_once: int = AT_ONCE) -> None:
        self._speculative = speculative
        self._plain = plain
        self._seed = seed
        self._places = asyncio.Semaphore(at_once)

    @property
    def _dialect(self) -> Dialect:
        """The dialect of the speculative side."""
        return DIALECTS[self._speculative.backend.dialect]

    @property
    def _counted(self) -> bool:
        """Whether the speculative side counts its drafts: servers with a draft length per request do, and those whose
        dialect has counts."""
        return self._speculative.backend.drafts_per_request or self._dialect.counts is not None

    async def run(self) -> list[Finding]:
        """The finding for each subject. Raises `UpstreamError` or `Overloaded` if a server did not respond; an
        unreachable one is marked as lost (`Replica.lost`)."""
        findings = await self._findings(Subject.GREEDY_SPECULATION, self._greedy)
        if self._plain.backend.own_engine:  # its contract has no scores
            return findings
        return [*findings, *await self._findings(Subject.SAMPLED_SPECULATION, self._sampled)]

    async def _findings(self, subject: Subject, look: Callable[[], Awaitable[list[Finding]]]) -> list[Finding]:
        """The findings of `look`. A server that refuses the probes, or whose answers have another form, cannot be
        checked."""
        try:
            return await look()
        except RequestError as exc:
            detail = f"the probes were refused: {for_log(exc)}{_hint(exc)}"
        except Incomparable as exc:
            detail = f"the server's answers cannot be compared: {exc.cause}"
        return [Finding(subject=subject, result=Result.NO_DATA, detail=detail)]

    async def _greedy(self) -> list[Finding]:
        try:
            pairs = await self._greedy_pairs(_as_it_is)
        except RequestError:  # the server may refuse fields beyond OpenAI's; texts can be compared without them
            pairs = await self._greedy_pairs(openai_alone)
        findings = [judge_greedy(pairs, counted=self._counted), judge_draft_length(pairs)]
        if (field := self._dialect.counts) is not None:
            findings.append(judge_dialect(pairs, dialect=self._speculative.backend.dialect, field=field))
        return findings

    async def _greedy_pairs(self, form: Form) -> list[GreedyPair]:
        requests = [form(request) for request in greedy_requests(self._plain.backend.model)]
        async with self._sampled_neighbour(form):
            return await self._each(requests, self._greedy_pair)

    @contextlib.asynccontextmanager
    async def _sampled_neighbour(self, form: Form) -> AsyncIterator[None]:
        """Sampled requests that draft beside the greedy ones, as in traffic. Raises any error of theirs.

        An engine may verify a purely greedy batch with another kernel than a mixed one: vLLM 0.32 on CPUs returns wrong
        answers to greedy requests that draft beside a sampled one, and to no others.
        """
        task = asyncio.create_task(self._keep_sampling(form))
        try:
            yield
            if task.done():
                task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _keep_sampling(self, form: Form) -> None:
        for request in itertools.cycle(sampled_requests(self._plain.backend.model, seed=self._seed)):
            await self._ask(self._speculative, form(request))

    async def _greedy_pair(self, request: GenerationRequest) -> GreedyPair:
        speculative, plain = await self._ask(self._speculative, request), await self._ask(self._plain, request)
        return GreedyPair(speculative, plain, await self._tie(speculative, plain))

    async def _tie(self, speculative: ProbeAnswer, plain: ProbeAnswer) -> float | None:
        at = first_difference(speculative, plain)
        if at is not None and at < len(plain.margins):
            return plain.margins[at]
        if at is None or at >= len(speculative.token_ids) or not speculative.prompt_token_ids:
            return None
        try:
            *_, score = await self._score(speculative.prompt_token_ids, speculative.token_ids[: at + 1])
        except (Incomparable, RequestError):
            return None
        return score.top[0] - score.logprob

    async def _sampled(self) -> list[Finding]:
        drafted = 0

        async def scored(side: Side, request: GenerationRequest) -> tuple[TokenScore, ...]:
            nonlocal drafted
            answer = await self._ask(side, request)
            drafted += answer.drafted if side is self._speculative else 0
            return await self._score(answer.prompt_token_ids, answer.token_ids)

        model = self._plain.backend.model
        requests = list(sampled_requests(model, seed=self._seed))
        speculative = await self._each(requests, lambda request: scored(self._speculative, request))
        plain = await self._each(requests, lambda request: scored(self._plain, request))
        return [judge_sampled(speculative, plain, drafted=drafted if self._counted else None)]

    async def _each(
        self, requests: Iterable[GenerationRequest], send: Callable[[GenerationRequest], Awaitable[_T]]
    ) -> list[_T]:
        async def one(request: GenerationRequest) -> _T:
            async with self._places:
                return await send(request)

        return await all_of([one(request) for request in requests])

    async def _ask(self, side: Side, request: GenerationRequest) -> ProbeAnswer:
        model = side.backend.model
        if side.backend.own_engine:  # its tensors support all fields of a probe, including token ids
            request = msgspec.structs.replace(request, features=frozenset())
        job = Job(
            request=msgspec.structs.replace(request, model=model, raw=_named(request.raw, model)),
            model=model,
            draft_length=side.draft_length,
            request_id="conformance",
            margins=True,
        )
        with _noticing_loss(side.replica):
            return read_answer(await side.replica.upstream.complete(job))

    async def _score(self, prompt: tuple[int, ...], answer: tuple[int, ...]) -> tuple[TokenScore, ...]:
        if not self._plain.backend.scores_prompts:
            raise Incomparable("the server cannot score prompts while it has LoRA adapters")
        if not prompt:
            raise Incomparable("the server returns no token ids")
        with _noticing_loss(self._plain.replica):
            return await self._plain.replica.upstream.score(prompt, answer, model=self._plain.backend.model)


def _as_it_is(request: GenerationRequest) -> GenerationRequest:
    return request


@contextlib.contextmanager
def _noticing_loss(replica: Replica) -> Iterator[None]:
    try:
        yield
    except UpstreamUnavailable:
        replica.lost()
        raise


def _hint(refusal: RequestError) -> str:
    if isinstance(refusal, UpstreamRejected) and refusal.status in (401, 403):
        return " A check is sent without a client's key: set a key in apiKeyEnv."
    return ""


def _named(raw: bytes, model: str) -> bytes:
    """The body `raw` with the server's model name `model`."""
    return msgspec.json.encode({**msgspec.json.decode(raw), "model": model})
