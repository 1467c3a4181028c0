"""The pipe's two tensors on the gateway's side: what is sent, and what becomes of each kind of response."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest
from slipstream_core.errors import SlipstreamError, UpstreamFailed, UpstreamTimeout, UpstreamUnavailable
from slipstream_gateway.upstreams.triton_transport import PipedResponse, TritonTransport
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.polling import PATIENCE_S, soon

HEAD = b'{"status": 200, "headers": {"content-type": "application/json"}}\n'
Message = service_pb2.ModelStreamInferResponse


def part(data: bytes, *, last: bool = False) -> Message:
    response = service_pb2.ModelInferResponse(raw_output_contents=[data])
    response.parameters["triton_final_response"].bool_param = last
    return Message(infer_response=response)


END = Message(infer_response=service_pb2.ModelInferResponse(parameters=part(b"", last=True).infer_response.parameters))


class Triton(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Answers each request with `messages`; with `holds`, it then waits until the call is cancelled."""

    def __init__(self) -> None:
        self.messages: Sequence[Message] = ()
        self.holds = False
        self.requests: list[bytes] = []
        self.cancelled = self.ended = 0

    async def ModelStreamInfer(self, requests: Any, context: Any) -> AsyncIterator[Message]:
        async for request in requests:
            assert request.model_name == "embedded"
            self.requests += request.raw_input_contents
            for message in self.messages:
                yield message
            if self.holds:
                try:
                    await asyncio.sleep(PATIENCE_S)
                except asyncio.CancelledError:
                    self.cancelled += 1
                    raise
        self.ended += 1


@pytest.fixture
async def triton() -> AsyncIterator[tuple[Triton, TritonTransport]]:
    server, scripted = grpc.aio.server(), Triton()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(scripted, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    transport = TritonTransport(f"127.0.0.1:{port}", model="embedded", connect_timeout_s=PATIENCE_S)
    yield scripted, transport
    await transport.aclose()
    await server.stop(None)


async def read(transport: TritonTransport) -> bytes:
    """The whole body of a response to a POST."""
    response = await transport.post("v1/completions", {"x-a": "b"}, b'{"n": 1}')
    with contextlib.closing(response):
        parts = []
        while data := await response.content.readany():
            parts.append(data)
    return b"".join(parts)


@pytest.mark.parametrize(
    "messages",
    [
        [part(HEAD + b"one two", last=True)],
        [part(HEAD + b"one two"), END],
        [part(HEAD), part(b"one "), part(b""), part(b"two", last=True)],
    ],
)
async def test_a_response_is_its_parts(triton: tuple[Triton, TritonTransport], messages: Sequence[Message]) -> None:
    server, transport = triton
    server.messages = messages
    assert await read(transport) == b"one two"
    [request] = server.requests
    head, _, body = request.partition(b"\n")
    assert json.loads(head) == {"method": "POST", "path": "/v1/completions", "headers": {"x-a": "b"}}
    assert body == b'{"n": 1}'
    await soon(lambda: server.ended == 1)


async def test_status_and_headers_are_the_applications(triton: tuple[Triton, TritonTransport]) -> None:
    server, transport = triton
    server.messages = [part(b'{"status": 404, "headers": {"x-b": "c"}}\n{}', last=True)]
    assert await transport.fetch("GET", "slipstream", {}) == (404, b"{}")
    response = await transport.post("v1/completions", {}, b"")
    assert (response.status, response.headers) == (404, {"x-b": "c"})
    response.close()


FAILURES: list[tuple[str, Sequence[Message], type[SlipstreamError], str]] = [
    ("no head", [part(b"{}", last=True)], UpstreamFailed, "does not begin with a status"),
    ("no message", [], UpstreamFailed, "prematurely"),
    ("no end", [part(HEAD + b"one")], UpstreamFailed, "prematurely"),
    ("its end", [part(HEAD), Message(error_message="halted: it ends")], UpstreamUnavailable, "shutting down"),
    ("a failure", [part(HEAD), Message(error_message="internal: not found")], UpstreamFailed, "The upstream failed"),
    (
        "another version",
        [Message(error_message="unexpected inference input 'request'")],
        UpstreamUnavailable,
        "version",
    ),
    ("no model", [Message(error_message="Request for unknown model: x")], UpstreamUnavailable, "is not ready"),
    ("a dead stub", [Message(error_message="Stub process 'x' is not healthy.")], UpstreamFailed, "failed"),
]


@pytest.mark.parametrize(("messages", "kind", "words"), [row[1:] for row in FAILURES], ids=[row[0] for row in FAILURES])
async def test_failures_have_names(
    triton: tuple[Triton, TritonTransport], messages: Sequence[Message], kind: type[SlipstreamError], words: str
) -> None:
    server, transport = triton
    server.messages = messages
    with pytest.raises(kind, match=words) as caught:
        await read(transport)
    assert type(caught.value) is kind
    assert getattr(caught.value, "broke", False) == ("not healthy" in str(messages))


async def test_what_nobody_reads_any_more_is_cancelled(triton: tuple[Triton, TritonTransport]) -> None:
    server, transport = triton
    server.messages, server.holds = [part(HEAD + b"one")], True
    response = await transport.post("v1/completions", {}, b"")
    response.close()
    await soon(lambda: server.cancelled == 1)
    with pytest.raises(UpstreamTimeout, match="in time"):
        await transport.fetch("GET", "slipstream", {}, timeout_s=0.2)
    await soon(lambda: server.cancelled == 2)


class Losing:
    """A call that ends as gRPC's does where it fails while its reader is cancelled: without the cancellation."""

    def __init__(self) -> None:
        self.is_read = asyncio.Event()

    async def read(self) -> object:
        self.is_read.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return grpc.aio.EOF
        raise AssertionError("nothing wakes it")

    def cancel(self) -> None: ...


async def test_a_cancellation_that_grpc_loses_ends_the_reader() -> None:
    call = Losing()
    reading = asyncio.create_task(PipedResponse(call).read_head())
    await call.is_read.wait()
    reading.cancel()
    await asyncio.wait([reading])
    assert reading.cancelled()
