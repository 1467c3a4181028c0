"""One check of one server: it sends the probes to both arms, has the plain side score sampled answers, and judges the
results.

Answers of the plain arm are the reference. With one pool for both arms they come from the same server, at draft length
0.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from slipstream_core.errors import (
    BreaksServers,
    Incomparable,
    RequestError,
    SlipstreamError,
    UpstreamRejected,
    UpstreamUnavailable,
    for_log,
)
from slipstream_core.manifest.dialects import DIALECTS, Dialect
from slipstream_core.manifest.table import Backend
from slipstream_core.tasks import beside

from slipstream_gateway.lossless.answers import WholeAnswer, first_difference, read_answer
from slipstream_gateway.lossless.findings import (
    Finding,
    GreedyPair,
    ProbeAnswer,
    Result,
    Subject,
    judge_dialect,
    judge_draft_length,
    judge_greedy,
    judge_sampled,
)
from slipstream_gateway.lossless.probes import Probe, greedy_probes, sampled_probes
from slipstream_gateway.lossless.token_scores import TokenScore, scores_of
from slipstream_gateway.request.query_of_death import QueriesOfDeath
from slipstream_gateway.upstreams.base import Job
from slipstream_gateway.upstreams.pool import Replica

AT_ONCE = 4
"""Maximum number of concurrent probes: a server completes a check in a few batches and has capacity left for
requests."""
_T = TypeVar("_T")


class Side(NamedTuple):
    """A server as one arm of the check."""

    replica: Replica
    backend: Backend
    draft_length: int


class Check:
    """The check of the `speculative` side of `pair` against the `plain` one; `seed` is that of the first sampled probe,
    `at_once` the maximum number of concurrent probes. `deaths` stops probes that break servers."""

    def __init__(
        self, *, pair: str, speculative: Side, plain: Side, seed: int, deaths: QueriesOfDeath, at_once: int = AT_ONCE
    ) -> None:
        self._pair = pair
        self._deaths = deaths
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
        if self._plain.backend.own_engine:  # it has no scores
            return findings
        return [*findings, *await self._findings(Subject.SAMPLED_SPECULATION, self._sampled)]

    async def _findings(
        self, subject: Subject, look: Callable[[], Coroutine[Any, Any, list[Finding]]]
    ) -> list[Finding]:
        """The findings of `look`. A server that refuses the probes, or whose answers have another form, cannot be
        checked."""
        try:
            return await look()
        except (RequestError, BreaksServers) as exc:
            detail = f"the probes were refused: {for_log(exc)}{_hint(exc)}"
        except Incomparable as exc:
            detail = f"the server's answers cannot be compared: {exc.cause}"
        return [Finding(subject=subject, result=Result.NO_DATA, detail=detail)]

    async def _greedy(self) -> list[Finding]:
        try:
            pairs = await self._greedy_pairs()
        except RequestError:  # the server may refuse fields beyond OpenAI's; texts can be compared without them
            pairs = await self._greedy_pairs(openai_alone=True)
        findings = [judge_greedy(pairs, counted=self._counted), judge_draft_length(pairs)]
        if (field := self._dialect.counts) is not None:
            findings.append(judge_dialect(pairs, dialect=self._speculative.backend.dialect, field=field))
        return findings

    async def _greedy_pairs(self, *, openai_alone: bool = False) -> list[GreedyPair]:
        probes = greedy_probes(self._plain.backend.model, openai_alone=openai_alone)
        async with self._sampled_neighbour(openai_alone=openai_alone):
            return await self._each(probes, self._greedy_pair)

    @contextlib.asynccontextmanager
    async def _sampled_neighbour(self, *, openai_alone: bool) -> AsyncIterator[None]:
        """Sampled requests that draft beside the greedy ones, as in traffic. Raises any error of theirs.

        An engine may verify a purely greedy batch with another kernel than a mixed one: vLLM 0.32 on CPUs returns wrong
        answers to greedy requests that draft beside a sampled one, and to no others.
        """
        async with beside(self._keep_sampling(openai_alone=openai_alone)) as task:
            yield
            if task.done():
                task.result()

    async def _keep_sampling(self, *, openai_alone: bool) -> None:
        model = self._plain.backend.model
        for probe in itertools.cycle(sampled_probes(model, seed=self._seed, openai_alone=openai_alone)):
            await self._ask(self._speculative, probe)

    async def _greedy_pair(self, probe: Probe) -> GreedyPair:
        speculative, plain = await self._ask(self._speculative, probe), await self._ask(self._plain, probe)
        return GreedyPair(speculative, plain, await self._tie(probe, speculative.answer, plain.answer))

    async def _tie(self, probe: Probe, answer: WholeAnswer, plain: WholeAnswer) -> float | None:
        difference = first_difference(answer, plain)
        if difference is None:
            return None
        if difference.index >= len(answer.token_ids) or not answer.prompt_token_ids:
            return None
        try:
            *_, score = await self._score(probe, answer, tokens=difference.index + 1)
        except (Incomparable, RequestError):
            return None
        return score.top[0] - score.logprob

    async def _sampled(self) -> list[Finding]:
        drafted = 0

        async def scored(side: Side, probe: Probe) -> tuple[TokenScore, ...]:
            nonlocal drafted
            probed = await self._ask(side, probe)
            drafted += probed.usage.drafted if side is self._speculative else 0
            return await self._score(probe, probed.answer)

        model = self._plain.backend.model
        probes = list(sampled_probes(model, seed=self._seed))
        speculative = await self._each(probes, lambda probe: scored(self._speculative, probe))
        plain = await self._each(probes, lambda probe: scored(self._plain, probe))
        return [judge_sampled(speculative, plain, drafted=drafted if self._counted else None)]

    async def _each(self, probes: Iterable[Probe], send: Callable[[Probe], Coroutine[Any, Any, _T]]) -> list[_T]:
        """After a failure no more probes are sent. Those that run are not cancelled: which of them broke the server is
        known when each has failed."""
        failures: list[SlipstreamError] = []

        async def one(probe: Probe) -> list[_T]:
            async with self._places:
                try:
                    return [] if failures else [await send(probe)]
                except SlipstreamError as exc:
                    failures.append(exc)
                    return []

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(probe)) for probe in probes]
        if failures:
            raise failures[0]
        return [answer for task in tasks for answer in task.result()]

    async def _ask(self, side: Side, probe: Probe) -> ProbeAnswer:
        """Raises `BreaksServers` in place of sending a probe that broke servers."""
        job = Job(
            request=probe.request,
            model=side.backend.model,
            draft_length=side.draft_length,
            request_id="conformance",
            token_ids=probe.has_ids,
        )
        with self._running(probe, side.replica, side.draft_length):
            completion = await side.replica.upstream.complete(job)
        if side.draft_length:  # a plain answer does not clear a draft that breaks servers
            self._deaths.answered(self._pair, probe.request)
        return ProbeAnswer(await read_answer([completion.body], stream=False), completion.usage)

    async def _score(self, probe: Probe, answer: WholeAnswer, *, tokens: int | None = None) -> tuple[TokenScore, ...]:
        """The scores of the first `tokens` tokens of `answer`; None: of all."""
        plain = self._plain
        if not plain.backend.scores_prompts:
            raise Incomparable("the server cannot score prompts while it has LoRA adapters")
        if not answer.prompt_token_ids:
            raise Incomparable("the server returns no token ids")
        with self._running(probe, plain.replica, 0):
            return await scores_of(
                plain.replica.upstream,
                answer.prompt_token_ids,
                answer.token_ids[:tokens],
                model=plain.backend.model,
            )

    @contextlib.contextmanager
    def _running(self, probe: Probe, replica: Replica, draft_length: int) -> Iterator[None]:
        """Counts `probe` in the load of `replica`, by which the times of other requests are judged, and records a
        failure. Raises `BreaksServers` first if the probe broke servers."""
        self._deaths.check(self._pair, probe.request)
        replica.acquire(draft_length, time.perf_counter())
        try:
            yield
        except SlipstreamError as exc:
            self._deaths.failed(self._pair, probe.request, replica, exc)
            if isinstance(exc, UpstreamUnavailable):
                replica.lost()
            raise
        finally:
            replica.release(draft_length, time.perf_counter())


def _hint(refusal: SlipstreamError) -> str:
    if isinstance(refusal, UpstreamRejected) and refusal.status in (401, 403):
        return " A check is sent without a client's key: set a key in apiKeyEnv."
    return ""
