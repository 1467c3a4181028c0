"""vLLM with Slipstream's plugin as an upstream: its OpenAI-compatible server, with a draft length in every request.

https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html
"""

from __future__ import annotations

import asyncio
import ssl

from multidict import CIMultiDict
from slipstream_core.errors import (
    ModelNotLoaded,
    UpstreamFailed,
    UpstreamRejected,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from slipstream_core.network_errors import NETWORK_ERRORS, describe_network_error
from yarl import URL

from slipstream_gateway.upstreams.base import Drafting, Job, Usage
from slipstream_gateway.upstreams.endpoint_rules import EndpointRules
from slipstream_gateway.upstreams.openai_bodies import HttpResponse
from slipstream_gateway.upstreams.openai_continuation import limited_body
from slipstream_gateway.upstreams.openai_reading import Reader
from slipstream_gateway.upstreams.openai_server import OpenAiUpstream
from slipstream_gateway.upstreams.vllm_plugin import PluginAnswer, PluginWatch
from slipstream_gateway.upstreams.vllm_wire import (
    count_body,
    drafting_body,
    is_own_field,
    is_unknown_model,
    vllm_reader_of,
)

CONTROL_TIMEOUT_S = 2.0


class VllmUpstream(OpenAiUpstream):
    """One server at `base_url`, as with `OpenAiUpstream`. `api_key` also authorizes the plugin's control routes."""

    gives_token_ids = True

    def __init__(
        self,
        base_url: str,
        *,
        connect_timeout_s: float,
        api_key: str | None = None,
        tls: ssl.SSLContext | None = None,
        rules: EndpointRules | None = None,
    ) -> None:
        super().__init__(base_url, connect_timeout_s=connect_timeout_s, api_key=api_key, tls=tls, rules=rules)
        self._plugin_url = self._root.join(URL("slipstream"))
        self._stop_url = self._root.join(URL("slipstream/stop_drafting"))
        self._watch = PluginWatch(base_url, self._describe)

    @property
    def drafting(self) -> Drafting:
        return self._watch.drafting

    async def stop_drafting(self) -> None:
        """Raises `UpstreamError` if the server did not accept it."""
        answer = await self._control("POST", self._stop_url)
        if answer.status != 200:
            message = f"The upstream returned status {answer.status} to stop_drafting."
            raise UpstreamFailed(message, detail=f"{len(answer.body)} bytes")

    async def aclose(self) -> None:
        await self._watch.aclose()
        await super().aclose()

    def _body(self, job: Job) -> bytes:
        known = job.committed
        if known is None or not known.token_ids or not self.drafting.continues(job.request):
            return self._continued(job, drafting_body(job))
        body = drafting_body(job, resumed_ids=known.token_ids)
        return limited_body(job.request, known, body)

    def _job_headers(self, job: Job) -> CIMultiDict[str]:
        headers = super()._job_headers(job)
        headers["x-request-id"] = job.request_id  # the server's id of the request ends with this one
        return headers

    def _reader(self, job: Job, usage: Usage) -> Reader:
        return vllm_reader_of(job, usage)

    def _answer(self, job: Job, body: bytes) -> tuple[bytes, Usage]:
        body, usage = super()._answer(job, body)
        return count_body(body, usage, job), usage

    async def _post(self, job: Job) -> HttpResponse:
        try:
            return await super()._post(job)
        except UpstreamUnavailable:
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

    async def _describe(self) -> PluginAnswer:
        return await self._control("GET", self._plugin_url)

    async def _control(self, method: str, url: URL) -> PluginAnswer:
        """Uses the session of the requests, not httpx: a control route must be reached by the same TLS credentials and
        address rules."""
        try:
            async with (
                asyncio.timeout(CONTROL_TIMEOUT_S),
                self._session.request(method, url, headers=self._headers(()), allow_redirects=False) as response,
            ):
                return PluginAnswer(response.status, await response.read())
        except TimeoutError as exc:
            raise UpstreamTimeout("The upstream's control routes did not respond in time.") from exc
        except NETWORK_ERRORS as exc:
            raise UpstreamUnavailable("The upstream is unreachable.", detail=describe_network_error(exc)) from None
