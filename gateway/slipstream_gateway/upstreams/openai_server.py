"""An OpenAI-compatible server (vLLM, SGLang, …) as an upstream."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from multidict import CIMultiDict
from slipstream_core.errors import (
    UpstreamFailed,
    UpstreamUnavailable,
)
from slipstream_core.manifest.dialects import DIALECTS, Dialect
from slipstream_core.manifest.engines import DialectName
from slipstream_core.network_errors import NETWORK_ERRORS, describe_network_error
from slipstream_core.types import Endpoint

from slipstream_gateway.upstreams.base import (
    ANY_DRAFT,
    MAX_COUNT,
    Completion,
    Drafting,
    DraftStanding,
    Job,
    Piece,
    Usage,
)
from slipstream_gateway.upstreams.dialect_wire import count_dialect_body, dialect_body, dialect_reader_of
from slipstream_gateway.upstreams.model_name import ModelName
from slipstream_gateway.upstreams.openai_bodies import read_whole, refusal
from slipstream_gateway.upstreams.openai_continuation import continued_body
from slipstream_gateway.upstreams.openai_reading import Reader, finish_reasons_of
from slipstream_gateway.upstreams.openai_wire import read_body_usage
from slipstream_gateway.upstreams.responses_wire import read_response_usage
from slipstream_gateway.upstreams.sse import EventSplitter, is_whole_event
from slipstream_gateway.upstreams.token_ids import TokenIds, requests_ids
from slipstream_gateway.upstreams.transport import Fetched, HttpResponse, Transport
from slipstream_gateway.upstreams.valid_json import valid_events, valid_json
from slipstream_gateway.upstreams.wire_errors import reported_error

_PATHS = {
    Endpoint.CHAT: "v1/chat/completions",
    Endpoint.COMPLETION: "v1/completions",
    Endpoint.RESPONSES: "v1/responses",
}
_MODELS_PATH = "v1/models"
_DEADLINE_GRACE_S = 0.5


class _Model(msgspec.Struct):
    """`max_model_len` is vLLM's and SGLang's name for the context; other servers have none."""

    id: str
    max_model_len: Any = None

    @property
    def context_tokens(self) -> int | None:
        length = self.max_model_len
        return length if isinstance(length, int) and not isinstance(length, bool) and 0 < length <= MAX_COUNT else None


class _Models(msgspec.Struct):
    """The answer of `v1/models`."""

    data: list[_Model]


_models = msgspec.json.Decoder(_Models)


class OpenAiUpstream:
    """One server, reached by `transport`, which the upstream closes. `api_key` is the gateway's own for it."""

    gives_token_ids = False
    _probe_timeout_s: float | None = None

    def __init__(
        self,
        transport: Transport,
        *,
        api_key: str | None = None,
        dialect: Dialect = DIALECTS[DialectName.OPENAI],
    ) -> None:
        self.answers_probes = transport.answers_probes
        self._transport = transport
        self._dialect = dialect
        self._ready_path = dialect.ready_path
        self._api_key = api_key

    @property
    def drafting(self) -> Drafting:
        """Any draft length: such a server drafts as configured at its start."""
        return ANY_DRAFT

    @property
    def fingerprint(self) -> str:
        """Empty: such a server promises nothing."""
        return ""

    @property
    def scores(self) -> bool:
        return self._dialect.scores

    @property
    def draft_standings(self) -> tuple[DraftStanding, ...]:
        return ()

    async def meet(self) -> None:
        """Such a server has no description."""

    async def complete(self, job: Job) -> Completion:
        body = valid_json(await read_whole(await self._post(job)))
        if (error := reported_error(body)) is not None:
            raise error
        ids = TokenIds(stream=False)
        try:
            body, usage = self._answer(job, ids.take(body) if requests_ids(job) else body)
        except (ValueError, RecursionError):
            raise UpstreamFailed("The upstream returned something other than a JSON object.") from None
        body = ModelName(job.request.model).of_body(body)
        return Completion(body=Piece(body, True, *ids.pop(), finish_reasons_of(body)), usage=usage)

    async def open(self, job: Job) -> OpenAiStream:
        response = await self._post(job)
        stream = OpenAiStream(response, job, self._reader)
        try:
            await stream.prefetch()
        except BaseException:  # however the attempt ends, the connection must be closed
            response.close()
            raise
        return stream

    async def probe(self) -> None:
        status = (await self._fetch("GET", self._ready_path, timeout_s=self._probe_timeout_s)).status
        if status >= 500:
            raise UpstreamUnavailable(f"The upstream returned status {status}.")

    async def is_same(self) -> bool:
        """True if the server responds: a process that ended refuses connections until another one has started."""
        await self.probe()
        return True

    async def models(self) -> Mapping[str, int | None]:
        answer = await self._fetch("GET", _MODELS_PATH)
        if answer.status != 200:
            raise UpstreamFailed(f"The upstream returned status {answer.status} for its models.")
        try:
            return {model.id: model.context_tokens for model in _models.decode(answer.body).data}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise UpstreamFailed("The upstream returned something other than a list of models.") from None

    async def stop_drafting(self) -> None:
        """Does nothing: such a server speculates as configured at its start, and its running answers cannot be changed.
        New requests go to the plain arm."""

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def _fetch(self, method: str, path: str, *, timeout_s: float | None = None) -> Fetched:
        return await self._transport.fetch(method, path, self._headers(()), timeout_s=timeout_s)

    def _headers(self, passed: tuple[tuple[str, str], ...]) -> CIMultiDict[str]:
        headers = CIMultiDict(passed)
        headers["content-type"] = "application/json"
        headers["accept-encoding"] = "identity"
        if self._api_key is not None:
            headers["authorization"] = f"Bearer {self._api_key}"
        return headers

    def _body(self, job: Job) -> bytes:
        """The body to send for `job`. Raises `RequestError`."""
        return self._continued(job, dialect_body(job, self._dialect))

    def _continued(self, job: Job, body: bytes) -> bytes:
        """`body`, changed to request the continuation of the committed part."""
        return body if job.committed is None else continued_body(job.request, job.committed, body)

    def _job_headers(self, job: Job) -> CIMultiDict[str]:
        return self._headers(job.headers)

    def _reader(self, job: Job, usage: Usage) -> Reader:
        """The reader for the stream that answers `job`."""
        return dialect_reader_of(job, usage, self._dialect)

    def _answer(self, job: Job, body: bytes) -> tuple[bytes, Usage]:
        """A whole answer for the client, and its cost. Raises `msgspec.DecodeError` if it is not a JSON object."""
        read_usage = read_response_usage if job.request.endpoint is Endpoint.RESPONSES else read_body_usage
        usage = read_usage(body)
        return count_dialect_body(body, usage, job, self._dialect), usage

    async def _post(self, job: Job) -> HttpResponse:
        """Sends the request; returns the response once its status is 200."""
        body, headers = self._body(job), self._job_headers(job)
        if job.carrier is not None:
            response = await job.carrier.post(self._transport.address, headers, body)
        else:
            path = _PATHS[job.request.endpoint]
            response = await self._transport.post(path, headers, body, timeout_s=_timeout_s(job))
        return await self._accepted(response)

    async def _accepted(self, response: HttpResponse) -> HttpResponse:
        """`response` if its status is 200 and its body is not coded. Raises the error of any other one."""
        if response.status != 200:
            raise await refusal(response, own_key=self._api_key is not None)
        coding = response.headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("", "identity"):
            response.close()
            raise UpstreamFailed(f"The upstream compressed its answer ({coding[:20]!r}), which was not permitted.")
        return response


def _timeout_s(job: Job) -> float | None:
    """The server's time for `job`, None without a limit. It is slightly longer than the client's deadline: the gateway
    then cancels first and knows the reason, and the server still stops its work if the gateway is gone."""
    return None if job.deadline_s is None else max(job.deadline_s - time.monotonic(), 0.0) + _DEADLINE_GRACE_S


class OpenAiStream:
    """A running SSE answer, forwarded in blocks of whole events as they arrive on the socket."""

    def __init__(self, response: HttpResponse, job: Job, reader: Callable[[Job, Usage], Reader]) -> None:
        known = job.committed
        self.usage = Usage(exact=False)
        if known is not None:
            self.usage = Usage(
                prompt_tokens=known.prompt_tokens,
                output_tokens=known.output_tokens,
                most_output_tokens=known.most_output_tokens,
                exact=False,
            )
        self._response = response
        self._content = response.content
        self._splitter = EventSplitter()
        self._reader = reader(job, self.usage)
        self._ids = TokenIds(stream=True) if requests_ids(job) else None
        self._names = ModelName(job.request.model, in_response=job.request.endpoint is Endpoint.RESPONSES)
        self._first: Piece | None = None

    async def prefetch(self) -> None:
        """Waits for the first block, before which nothing is sent to the client. Announcements before the first
        generated event are buffered until then."""
        first = await self._read()
        while first is not None and not self._reader.begun and (more := await self._read()) is not None:
            ids, prompt_ids = first.token_ids + more.token_ids, first.prompt_token_ids + more.prompt_token_ids
            ends = first.finish_reasons + more.finish_reasons
            first = Piece(first.data + more.data, more.tokens, ids, prompt_ids, ends)
        self._first = first

    async def next(self) -> Piece | None:
        if self._first is not None:
            piece, self._first = self._first, None
            return piece
        return await self._read()

    async def aclose(self) -> None:
        if self._reader.done:
            self._response.release()  # the end of the body may come after the last event
        else:
            self._response.close()

    async def _read(self) -> Piece | None:
        """The next block. None after the last event: clients leave then, and the answer is whole."""
        while True:
            if self._reader.failed:
                raise UpstreamFailed("The upstream failed during its stream.")
            if self._reader.done:
                return None
            try:
                data = await self._content.readany()
            except NETWORK_ERRORS as exc:
                detail = describe_network_error(exc)
                message = "The upstream closed the connection during its stream."
                raise UpstreamFailed(message, detail=detail, broke=True) from None
            if not data:
                return self._end()
            block = valid_events(self._splitter.feed(data))
            if block and (piece := self._take(block)).data:
                return piece

    def _end(self) -> Piece:
        """The last block of a body that ended without `[DONE]`. The answer is whole if `[DONE]` lacks its blank line,
        or if each choice has its finish reason."""
        tail = valid_events(self._splitter.tail)
        if tail.lstrip().startswith(b"{"):
            raise reported_error(tail) or UpstreamFailed("The upstream sent one JSON object in place of a stream.")
        last = self._take(tail.rstrip() + b"\n\n") if is_whole_event(tail) else Piece(b"")
        if self._reader.done:
            return last
        if not self._reader.finished or self._reader.failed:
            raise UpstreamFailed("The upstream ended its stream prematurely.", broke=True)
        self._reader.done = True
        return msgspec.structs.replace(last, data=last.data + b"data: [DONE]\n\n")

    def _take(self, block: bytes) -> Piece:
        try:
            return self._read_block(block)
        except (ValueError, RecursionError):
            raise UpstreamFailed("The upstream sent a malformed event.") from None

    def _read_block(self, block: bytes) -> Piece:
        reader = self._reader
        if self._ids is None:
            block = self._names.of_events(reader.read(block))
            return Piece(block, reader.generating, finish_reasons=finish_reasons_of(block))
        # The ids give the reader the number of tokens.
        block = self._names.of_events(self._ids.take(reader.read(block)))
        # Ids of a block that is not forwarded are attached to the next one.
        ids, prompt_ids = self._ids.pop() if block else ((), ())
        return Piece(block, reader.generating, ids, prompt_ids, finish_reasons_of(block))
