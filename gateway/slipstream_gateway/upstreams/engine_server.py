"""An engine by Slipstream's contract as an upstream: an OpenAI application with a draft length in every request.

vLLM with the plugin and the embedded engine are such applications, by HTTP or inside Triton. Additions to OpenAI's API:
`engine_wire` has the fields of requests and answers, `engine_watch` the description at `GET /slipstream`.
"""

from __future__ import annotations

import msgspec
from multidict import CIMultiDict
from slipstream_core.errors import (
    ConnectTimeout,
    ModelNotLoaded,
    UpstreamFailed,
    UpstreamRejected,
    UpstreamUnavailable,
)
from slipstream_core.types import Reason

from slipstream_gateway.upstreams.base import ANY_DRAFT, Drafting, DraftStanding, Job, Usage
from slipstream_gateway.upstreams.engine_watch import UNKNOWN, EngineWatch
from slipstream_gateway.upstreams.engine_wire import (
    count_body,
    drafting_body,
    engine_reader_of,
    is_own_field,
    is_unknown_model,
)
from slipstream_gateway.upstreams.openai_continuation import limited_body
from slipstream_gateway.upstreams.openai_reading import Reader
from slipstream_gateway.upstreams.openai_server import OpenAiUpstream
from slipstream_gateway.upstreams.transport import Fetched, HttpResponse, Transport

CONTROL_TIMEOUT_S = 2.0


class EngineUpstream(OpenAiUpstream):
    """One engine, as with `OpenAiUpstream`. `api_key` also authorizes the control routes."""

    gives_token_ids = True
    _probe_timeout_s = CONTROL_TIMEOUT_S

    def __init__(self, transport: Transport, *, api_key: str | None = None) -> None:
        super().__init__(transport, api_key=api_key)
        self._ready_path = "health"  # vLLM goes on listing its models after its engine has died
        self._stops = self._losses = 0
        unknown = ANY_DRAFT if transport.is_of_engines else UNKNOWN
        self._watch = EngineWatch(transport.address, self._describe, unknown=unknown)

    @property
    def drafting(self) -> Drafting:
        return self._watch.drafting

    @property
    def fingerprint(self) -> str:
        return self._watch.facts.fingerprint

    @property
    def scores(self) -> bool:
        return self._watch.facts.scores

    @property
    def draft_standings(self) -> tuple[DraftStanding, ...]:
        return self._watch.facts.draft_standings

    async def meet(self) -> None:
        await self._watch.meet()

    async def probe(self) -> None:
        """A server that starts is described at once: the next query of the watch may be seconds away."""
        await super().probe()
        await self.meet()

    async def is_same(self) -> bool:
        await super().probe()
        return await self._watch.is_same()

    async def stop_drafting(self) -> None:
        """Raises `UpstreamError` if the server did not accept it."""
        self._stops += 1
        answer = await self._fetch("POST", "slipstream/stop_drafting", timeout_s=CONTROL_TIMEOUT_S)
        if answer.status != 200:
            message = f"The upstream returned status {answer.status} to stop_drafting."
            raise UpstreamFailed(message, detail=f"{len(answer.body)} bytes")

    async def aclose(self) -> None:
        await self._watch.aclose()
        await super().aclose()

    def _body(self, job: Job) -> bytes:
        known = job.committed
        if known is None or not known.token_ids or not self.drafting.continues(job.request):
            if known is not None and known.token_ids and not known.text:  # it would begin anew
                raise UpstreamUnavailable("The upstream does not continue the answer.")
            return self._continued(job, drafting_body(job))
        body = drafting_body(job, resumed_ids=known.token_ids)
        return limited_body(job.request, known, body)

    def _job_headers(self, job: Job) -> CIMultiDict[str]:
        headers = super()._job_headers(job)
        headers["x-request-id"] = job.request_id  # the server's id of the request ends with this one
        return headers

    def _reader(self, job: Job, usage: Usage) -> Reader:
        return engine_reader_of(job, usage)

    def _answer(self, job: Job, body: bytes) -> tuple[bytes, Usage]:
        body, usage = super()._answer(job, body)
        return count_body(body, usage, job), usage

    async def _post(self, job: Job) -> HttpResponse:
        try:
            return await super()._post(await self._as_it_is_now(job))
        except (UpstreamUnavailable, ConnectTimeout) as exc:
            if exc.broke:  # maybe by the request alone
                self._watch.query_now()
            else:
                self._watch.lose()
            raise
        except UpstreamRejected as exc:
            if exc.status == 404 and is_unknown_model(exc.body):
                raise ModelNotLoaded(exc.status, exc.body) from None
            if not is_own_field(exc.body):
                raise
            self._watch.query_now()  # its maximum draft length has changed
            detail = f"status {exc.status}, {len(exc.body)} bytes"
            raise UpstreamFailed("The upstream refused the gateway's draft length.", detail=detail) from None

    async def _as_it_is_now(self, job: Job) -> Job:
        """`job` with a draft length that the server accepts. It is 0 if `stop_drafting` was called while the job waited
        for a connection: that call may wait for the same one, and would miss it."""
        if job.carrier is None:
            stops = self._stops
            await self._transport.connected()
            if self._losses != self._transport.losses:
                self._losses = self._transport.losses
                self._watch.lose()
                await self.meet()  # a resumption depends on what the server is
            if stops != self._stops:
                return msgspec.structs.replace(job, draft_length=0, adaptive=False)
        longest = self._longest()
        if longest is None or job.draft_length <= longest:
            return job
        return msgspec.structs.replace(job, draft_length=longest, adaptive=job.adaptive and longest > 0)

    def _longest(self) -> int | None:
        """The maximum draft length of the server, None if it is unknown. The decision may be older."""
        drafting = self.drafting
        if drafting.withheld is not None and drafting.withheld.reason is Reason.ENGINE_CANNOT:
            return 0
        return drafting.longest

    async def _describe(self) -> Fetched:
        return await self._fetch("GET", "slipstream", timeout_s=CONTROL_TIMEOUT_S)
