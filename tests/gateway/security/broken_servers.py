"""Servers whose answers break their protocol, with a secret in every place that a client library may quote."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from tests.support.threaded_server import ConnectionServer, ThreadedServer

SECRET = b"canary-answer-4b1c"
_PAUSE_S = 0.05  # between the parts of an answer, so that the gateway reads them one by one
_CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_EVENT = b'data: {"choices": [{"index": 0, "text": "word", "delta": {"content": "word"}}]}\n\n'
_FIRST = _CHUNKED + b"%x\r\n%s\r\n" % (len(_EVENT), _EVENT)


def _whole(body: bytes, *fields: bytes, status: bytes = b"200 OK") -> bytes:
    head = [b"HTTP/1.1 " + status, b"content-type: application/json", b"content-length: %d" % len(body), *fields]
    return b"\r\n".join([*head, b"", body])


def _events(*events: bytes) -> bytes:
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events)
    return _CHUNKED + chunks + b"0\r\n\r\n"


def _declared(length: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: " + length + b'\r\n\r\n{"text": "' + SECRET + b'"}'


HTTP_ANSWERS: dict[str, bytes | tuple[bytes, ...]] = {
    "chunk size that is no number": _CHUNKED + SECRET + b"\r\nword\r\n0\r\n\r\n",
    "chunk without its end": _CHUNKED + b"4\r\nword" + SECRET + b"\r\n0\r\n\r\n",
    "chunk size beside an event": _FIRST + SECRET + b"\r\n",
    "chunk size after an event": (_FIRST, SECRET + b"\r\n"),
    "chunk that ends early after an event": (_FIRST, b"ffff\r\n" + SECRET),
    "chunk that ends early": _CHUNKED + b"ffff\r\n" + SECRET,
    "trailer that is no field": _FIRST + b"0\r\n" + SECRET + b"\r\n\r\n",
    "status line": b"HTTP/1.1 2x0 " + SECRET + b"\r\n\r\n",
    "no HTTP": SECRET + b"\r\n\r\n",
    "header without a colon": b"HTTP/1.1 200 OK\r\n" + SECRET + b"\r\n\r\n",
    "header with a zero byte": b"HTTP/1.1 200 OK\r\nx-a: \x00" + SECRET + b"\r\n\r\n",
    "header that is too long": b"HTTP/1.1 200 OK\r\nx-a: " + SECRET * 4000 + b"\r\n\r\n",
    "head that ends early": b"HTTP/1.1 200 OK\r\nx-a: " + SECRET + b"\r\n",
    "reason phrase of a failure": b"HTTP/1.1 500 " + SECRET + b"\r\ncontent-length: 0\r\n\r\n",
    "length that is no number": _declared(SECRET),
    "length that is larger": _declared(b"4000"),
    "length that is negative": _declared(b"-5"),
    "two lengths": _declared(b"5\r\ncontent-length: 7"),
    "body that is no JSON": _whole(SECRET),
    "body that is half JSON": _whole(b'{"choices": [{"text": "' + SECRET),
    "usage of another type": _whole(b'{"usage": {"prompt_tokens": "' + SECRET + b'"}}'),
    "failure with a body": _whole(SECRET, status=b"500 X"),
    "refusal that is no JSON": _whole(SECRET, status=b"404 X"),
    "refusal that ends early": b"HTTP/1.1 400 X\r\ncontent-length: 4000\r\n\r\n" + SECRET,
    "event that is no JSON": _events(b"data: {" + SECRET + b"\n\n", b"data: [DONE]\n\n"),
    "event that reports a failure": _events(b'data: {"error": {"message": "' + SECRET + b'"}}\n\n'),
    "usage event that is no JSON": _events(_EVENT, b'data: {"usage": {' + SECRET + b"\n\n"),
    "stream without its end": _events(_EVENT, b"data: " + SECRET),
}
"""What a server sends, whole, before it closes the connection, by what is wrong with it."""


class BrokenHttpServer(ConnectionServer):
    """Answers a request with the bytes that its prompt names in `HTTP_ANSWERS`."""

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if head.startswith(b"get "):
            writer.write(_whole(b'{"object": "list", "data": []}', b"connection: close"))
        else:
            length = int(head.partition(b"content-length:")[2].split(maxsplit=1)[0])
            answer = HTTP_ANSWERS[json.loads(await reader.readexactly(length))["prompt"]]
            for part in (answer,) if isinstance(answer, bytes) else answer:
                writer.write(part)
                await asyncio.sleep(0 if part is answer else _PAUSE_S)
        await writer.drain()


_HEAD = b'{"status": 200, "headers": {"content-type": "application/json"}}\n'
_STREAM_HEAD = b'{"status": 200, "headers": {"content-type": "text/event-stream"}}\n'


def _piped(data: bytes, *, last: bool = True) -> bytes:
    """One response of the pipe model."""
    message = service_pb2.ModelStreamInferResponse()
    message.infer_response.outputs.add(name="response", datatype="UINT8", shape=[len(data)])
    message.infer_response.raw_output_contents.append(data)
    message.infer_response.parameters["triton_final_response"].bool_param = last
    return message.SerializeToString()


def _error(text: bytes) -> bytes:
    return service_pb2.ModelStreamInferResponse(error_message=text.decode()).SerializeToString()


GRPC_ANSWERS: dict[str, bytes | grpc.StatusCode] = {
    "message that is no protobuf": b"\xff\xff" + SECRET,
    "no head": _piped(SECRET),
    "head that is no JSON": _piped(b"{" + SECRET + b"\n{}"),
    "status that is a text": _piped(b'{"status": "' + SECRET + b'"}\n{}'),
    "body that is no JSON": _piped(_HEAD + SECRET),
    "body that is half JSON": _piped(_HEAD + b'{"choices": [{"text": "' + SECRET),
    "body that ends early": _piped(_HEAD + SECRET, last=False),
    "refusal that is no JSON": _piped(b'{"status": 404}\n' + SECRET),
    "failure with a body": _piped(b'{"status": 500}\n' + SECRET),
    "engine that is busy": _piped(b'{"status": 429}\n' + SECRET),
    "event that is no JSON": _piped(_STREAM_HEAD + b"data: {" + SECRET + b"\n\ndata: [DONE]\n\n"),
    "stream without its end": _piped(_STREAM_HEAD + _EVENT + b"data: " + SECRET),
    "engine's exception": _error(b"internal: KeyError: " + SECRET),
    "message of no known form": _error(b"the prompt was " + SECRET),
    "model that is not ready": _error(b"model " + SECRET + b" is not ready"),
    "model of another version": _error(b"unexpected inference input '" + SECRET),
    "engine that ends": _error(b"halted: " + SECRET),
    "unavailable": grpc.StatusCode.UNAVAILABLE,
    "internal": grpc.StatusCode.INTERNAL,
    "unknown": grpc.StatusCode.UNKNOWN,
    "cancelled": grpc.StatusCode.CANCELLED,
}
"""What a call answers, as bytes of a message or as a status whose details hold the secret."""


class BrokenTriton(ThreadedServer):
    """A gRPC server with Triton's calls that answers a request as its prompt says in `GRPC_ANSWERS`."""

    async def _serve(self) -> None:
        server = grpc.aio.server()
        calls = {"ModelStreamInfer": grpc.stream_stream_rpc_method_handler(self._infer)}
        service = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", calls)
        server.add_generic_rpc_handlers((service,))
        self.port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self._ready.set()
        await self._stopping.wait()
        await server.stop(None)

    async def _infer(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for raw in requests:
            [data] = service_pb2.ModelInferRequest.FromString(raw).raw_input_contents
            head, _, body = data.partition(b"\n")
            if json.loads(head)["method"] == "GET":
                yield _piped(_HEAD + b'{"object": "list", "data": []}')
                continue
            answer = GRPC_ANSWERS[json.loads(body)["prompt"]]
            if isinstance(answer, grpc.StatusCode):
                await context.abort(answer, SECRET.decode())
            else:
                yield answer
