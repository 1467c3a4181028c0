"""An OpenAI-compatible HTTP server (vLLM, SGLang, …) as an upstream.

Requests go through `http1`, everything else through aiohttp's client.
"""

from __future__ import annotations

import errno
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import aiohttp
import msgspec
from multidict import CIMultiDict
from slipstream_core.errors import (
    ConnectTimeout,
    Incomparable,
    UpstreamFailed,
    UpstreamUnavailable,
)
from slipstream_core.manifest.dialects import DIALECTS, Dialect
from slipstream_core.manifest.engines import DialectName
from slipstream_core.network_errors import NETWORK_ERRORS, describe_network_error
from slipstream_core.types import Endpoint
from yarl import URL

from slipstream_gateway.upstreams.base import ANY_DRAFT, MAX_COUNT, Completion, Drafting, Job, TokenScore, Usage, Wire
from slipstream_gateway.upstreams.dialect_wire import count_dialect_body, dialect_body, dialect_reader_of
from slipstream_gateway.upstreams.endpoint_enforcement import CheckedResolver
from slipstream_gateway.upstreams.endpoint_rules import EndpointRules
from slipstream_gateway.upstreams.http1 import KEEP_ALIVE_S, BrokenExchange, Http1Client, Http1Response, NotHttp
from slipstream_gateway.upstreams.model_name import ModelName
from slipstream_gateway.upstreams.openai_bodies import HttpResponse, read_body, read_whole, refusal
from slipstream_gateway.upstreams.openai_continuation import continued_body
from slipstream_gateway.upstreams.openai_reading import Reader
from slipstream_gateway.upstreams.openai_wire import read_body_usage
from slipstream_gateway.upstreams.responses_wire import read_response_usage
from slipstream_gateway.upstreams.scores import UNSCORED, score_by
from slipstream_gateway.upstreams.sse import EventSplitter, is_whole_event
from slipstream_gateway.upstreams.token_ids import TokenIds, requests_ids
from slipstream_gateway.upstreams.valid_json import valid_events, valid_json
from slipstream_gateway.upstreams.wire_errors import reported_error

_PATHS = {
    Endpoint.CHAT: "v1/chat/completions",
    Endpoint.COMPLETION: "v1/completions",
    Endpoint.RESPONSES: "v1/responses",
}
_MODELS_PATH = "v1/models"
_TLS_HINT = " (over TLS; a server that requires a client certificate closes connections this way, see --upstream-cert)"


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
    """One server at `base_url` (`http://host:port`, with or without a closing `/v1`)."""

    gives_token_ids = False
    sends_tokens = False
    answers_probes = False
    fingerprint = ""
    draft_standings = ()

    def __init__(
        self,
        base_url: str,
        *,
        connect_timeout_s: float,
        api_key: str | None = None,
        tls: ssl.SSLContext | None = None,
        rules: EndpointRules | None = None,
        dialect: Dialect = DIALECTS[DialectName.OPENAI],
    ) -> None:
        self._root = URL(base_url.rstrip("/").removesuffix("/v1") + "/")
        self._urls = {endpoint: self._root.join(URL(path)) for endpoint, path in _PATHS.items()}
        self._dialect = dialect
        self._probe_url = self._root.join(URL(dialect.ready_path))
        self._api_key = api_key
        resolver = CheckedResolver(rules) if rules is not None else None
        self._client = Http1Client(
            self._root,
            connect_timeout_s=connect_timeout_s,
            tls=(tls or ssl.create_default_context()) if self._root.scheme == "https" else None,
            resolver=resolver,
        )
        self._session = aiohttp.ClientSession(  # for probes and control routes
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S, ssl=tls or True, resolver=resolver),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s),
        )

    @property
    def drafting(self) -> Drafting:
        """Any draft length: such a server drafts as configured at its start."""
        return ANY_DRAFT

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
        return Completion(pieces=(Wire(body, True, *ids.pop()),), usage=usage)

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
        try:
            async with self._session.get(self._probe_url, headers=self._headers(()), allow_redirects=False) as response:
                status = response.status
        except NETWORK_ERRORS as exc:
            raise UpstreamUnavailable("The upstream is unreachable.", detail=describe_network_error(exc)) from None
        if status >= 500:
            raise UpstreamUnavailable(f"The upstream returned status {status}.")

    async def models(self) -> Mapping[str, int | None]:
        url = self._root.join(URL(_MODELS_PATH))
        try:
            async with self._session.get(url, headers=self._headers(()), allow_redirects=False) as response:
                status, body = response.status, await read_body(response)
        except NETWORK_ERRORS as exc:
            raise UpstreamUnavailable("The upstream is unreachable.", detail=describe_network_error(exc)) from None
        if status != 200:
            raise UpstreamFailed(f"The upstream returned status {status} for its models.")
        try:
            return {model.id: model.context_tokens for model in _models.decode(body).data}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise UpstreamFailed("The upstream returned something other than a list of models.") from None

    async def stop_drafting(self) -> None:
        """Does nothing: such a server speculates as configured at its start, and its running answers cannot be changed.
        New requests go to the plain arm."""

    async def score(
        self,
        prompt_token_ids: Sequence[int],
        answer_token_ids: Sequence[int],
        *,
        model: str,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> tuple[TokenScore, ...]:
        if not self._dialect.scores:
            raise Incomparable(UNSCORED)
        return await score_by(self.complete, prompt_token_ids, answer_token_ids, model=model, headers=headers)

    async def aclose(self) -> None:
        self._client.close()
        await self._session.close()

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
        body = self._body(job)
        url, headers = self._urls[job.request.endpoint], self._job_headers(job)
        response: HttpResponse
        if job.carrier is not None:
            response = await job.carrier.post(f"{url.host}:{url.port}", headers, body)
        else:
            response = await self._send(url, headers, body)
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

    async def _send(self, url: URL, headers: CIMultiDict[str], body: bytes) -> Http1Response:
        try:
            return await self._client.post(url.raw_path_qs, headers, body)
        except TimeoutError as exc:
            raise ConnectTimeout("The upstream did not accept a connection in time.") from exc
        except NotHttp as exc:
            raise UpstreamFailed("The upstream's response is not HTTP.", detail=describe_network_error(exc)) from None
        except OSError as exc:
            hint = _TLS_HINT if url.scheme == "https" and _is_hung_up(exc) else ""
            detail = f"{describe_network_error(exc)}{hint}"
            broke = isinstance(exc, BrokenExchange)
            raise UpstreamUnavailable("The upstream is unreachable.", detail=detail, broke=broke) from None


def _is_hung_up(error: Exception) -> bool:
    """Whether the server closed the connection. The kind of exception depends on which part was noticed first."""
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return True
    return getattr(error, "errno", None) in (errno.ECONNRESET, errno.EPIPE)


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
        self._first: Wire | None = None

    async def prefetch(self) -> None:
        """Waits for the first block, before which nothing is sent to the client. Announcements before the first
        generated event are buffered until then."""
        first = await self._read()
        while first is not None and not self._reader.begun and (more := await self._read()) is not None:
            ids, prompt_ids = first.token_ids + more.token_ids, first.prompt_token_ids + more.prompt_token_ids
            first = Wire(first.data + more.data, more.tokens, ids, prompt_ids)
        self._first = first

    async def next(self) -> Wire | None:
        if self._first is not None:
            piece, self._first = self._first, None
            return piece
        return await self._read()

    async def aclose(self) -> None:
        if self._reader.done:
            self._response.release()  # the end of the body may come after the last event
        else:
            self._response.close()

    async def _read(self) -> Wire | None:
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

    def _end(self) -> Wire:
        """The last block of a body that ended without `[DONE]`. The answer is whole if `[DONE]` lacks its blank line,
        or if each choice has its finish reason."""
        tail = valid_events(self._splitter.tail)
        if tail.lstrip().startswith(b"{"):
            raise reported_error(tail) or UpstreamFailed("The upstream sent one JSON object in place of a stream.")
        last = self._take(tail.rstrip() + b"\n\n") if is_whole_event(tail) else Wire(b"")
        if self._reader.done:
            return last
        if not self._reader.finished or self._reader.failed:
            raise UpstreamFailed("The upstream ended its stream prematurely.", broke=True)
        self._reader.done = True
        return msgspec.structs.replace(last, data=last.data + b"data: [DONE]\n\n")

    def _take(self, block: bytes) -> Wire:
        try:
            return self._read_block(block)
        except (ValueError, RecursionError):
            raise UpstreamFailed("The upstream sent a malformed event.") from None

    def _read_block(self, block: bytes) -> Wire:
        if self._ids is None:
            return Wire(self._names.of_events(self._reader.read(block)), self._reader.generating)
        # The ids give the reader the number of tokens.
        block = self._names.of_events(self._ids.take(self._reader.read(block)))
        # Ids of a block that is not forwarded are attached to the next one.
        ids, prompt_ids = self._ids.pop() if block else ((), ())
        return Wire(block, self._reader.generating, ids, prompt_ids)
