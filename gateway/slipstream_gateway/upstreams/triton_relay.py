"""Whole OpenAI requests through a Triton model that vLLM serves: JSON in, and vLLM's own body or events out.

Requests that the tensors cannot represent are relayed: tools, structured output, log-probabilities, the Responses API.
The bytes are vLLM's, so they are read and changed like those of its HTTP server.
"""

from __future__ import annotations

from typing import Any

from slipstream_core.errors import (
    Overloaded,
    SlipstreamError,
    UpstreamFailed,
    UpstreamRejected,
    UpstreamUnavailable,
)
from slipstream_core.types import Endpoint
from tritonclient.grpc import service_pb2

from slipstream_gateway.upstreams.base import Completion, Job, Usage, Wire
from slipstream_gateway.upstreams.model_name import ModelName
from slipstream_gateway.upstreams.openai_wire import read_body_usage
from slipstream_gateway.upstreams.responses_wire import read_response_usage
from slipstream_gateway.upstreams.triton_errors import triton_error
from slipstream_gateway.upstreams.triton_streams import end_call, read_message
from slipstream_gateway.upstreams.triton_wire import RelayedPart, read_relayed
from slipstream_gateway.upstreams.vllm_wire import count_body, drafting_body, is_own_field, vllm_reader_of

_MAX_BODY_BYTES = 64 * 1024 * 1024


def relayed_request(job: Job, *, request_id: str) -> service_pb2.ModelInferRequest:
    """The request message with the unchanged `job` and its draft length. Raises `InvalidRequest`."""
    message = service_pb2.ModelInferRequest(model_name=job.model, id=request_id)
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    body = b'{"endpoint":"%s","body":%s}' % (job.request.endpoint.encode(), drafting_body(job))
    message.inputs.add(name="openai_request", datatype="UINT8", shape=[len(body)])
    message.raw_input_contents.append(body)
    return message


async def read_whole(call: Any, job: Job) -> Completion:
    """The whole answer to a non-streamed request. Raises the error of a server that refuses it."""
    parts: list[bytes] = []
    size_bytes, last = 0, False
    while not last:
        part = await _read_part(call, parts)
        parts.append(part.data)
        size_bytes, last = size_bytes + len(part.data), part.last
        if size_bytes > _MAX_BODY_BYTES:
            raise UpstreamFailed(f"The inference server's answer exceeds {_MAX_BODY_BYTES} bytes.")
    body = b"".join(parts)
    try:
        body, usage = _with_counts(job, body)
    except (ValueError, RecursionError):
        raise UpstreamFailed("The inference server returned something other than a JSON object.") from None
    return Completion(pieces=(Wire(ModelName(job.request.model).of_body(body)),), usage=usage)


class RelayedStream:
    """A running answer of server-sent events; each response of the model is a block of whole events."""

    def __init__(self, call: Any, job: Job) -> None:
        self.usage = Usage(exact=False)
        self._ended = False
        self._call = call
        self._reader = vllm_reader_of(job, self.usage)
        self._names = ModelName(job.request.model, in_response=job.request.endpoint is Endpoint.RESPONSES)
        self._first: Wire | None = None

    async def prefetch(self) -> None:
        """Waits for the first block, as `OpenAiStream.prefetch` does."""
        first = await self._read()
        while first is not None and not self._reader.begun and (more := await self._read()) is not None:
            first = Wire(first.data + more.data, more.tokens)
        self._first = first

    async def next(self) -> Wire | None:
        if self._first is not None:
            piece, self._first = self._first, None
            return piece
        return await self._read()

    async def aclose(self) -> None:
        end_call(self._call, ended=self._ended)

    async def _read(self) -> Wire | None:
        while not self._ended:
            if self._reader.failed:
                raise UpstreamFailed("The inference server failed during its stream.")
            part = await _read_part(self._call, ())
            self._ended = part.last
            try:
                block = self._reader.read(part.data) if part.data else b""
            except (ValueError, RecursionError):
                raise UpstreamFailed("The inference server sent a malformed event.") from None
            if block:
                return Wire(self._names.of_events(block), self._reader.generating)
        if not self._reader.done:
            raise UpstreamFailed("The inference server ended its stream prematurely.")
        return None


async def _read_part(call: Any, before: list[bytes] | tuple[()]) -> RelayedPart:
    """The next response. Raises the error in it."""
    answer = await read_message(call)
    if answer.error_message:
        raise triton_error(answer.error_message)
    part = read_relayed(answer.infer_response)
    if part.status != 200 and not before:
        raise _refusal(part.status, part.data)
    return part


def _with_counts(job: Job, body: bytes) -> tuple[bytes, Usage]:
    """A whole body for the client, and its cost."""
    responses = job.request.endpoint is Endpoint.RESPONSES
    usage = read_response_usage(body) if responses else read_body_usage(body)
    return count_body(body, usage, job), usage


def _refusal(status: int, body: bytes) -> SlipstreamError:
    """The error for a status other than 200."""
    if status == 429:
        return Overloaded("The inference server is overloaded.")
    if status == 503:
        return UpstreamUnavailable("The inference server is not ready.")
    if is_own_field(body):
        return UpstreamFailed("The inference server refused the gateway's draft length.")
    if 400 <= status < 500:
        return UpstreamRejected(status, body)
    # The body is dropped: it may quote the prompt, and details are logged.
    return UpstreamFailed(f"The inference server returned status {status}.", detail=f"{len(body)} bytes")
