"""An OpenAI-compatible server's refusals, and the end of its streams, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from slipstream_core.errors import SlipstreamError, UpstreamFailed
from slipstream_core.types import Endpoint, GenerationRequest
from slipstream_gateway.api.errors import error_reply
from slipstream_gateway.upstreams.base import Job, Stream
from slipstream_gateway.upstreams.openai_server import OpenAiUpstream

from tests.support.polling import soon

pytestmark = pytest.mark.integration

RAW = b'{"model": "m", "prompt": "x", "stream": true}'


@contextlib.asynccontextmanager
async def answering(status: int, body: bytes, api_key: str | None = None) -> AsyncIterator[OpenAiUpstream]:
    """An upstream whose server gives every request the same answer."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(b"HTTP/1.1 %d X\r\ncontent-type: text/html\r\ncontent-length: %d\r\n\r\n" % (status, len(body)))
        writer.write(body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    upstream = OpenAiUpstream(url, connect_timeout_s=5, api_key=api_key)
    try:
        yield upstream
    finally:
        await upstream.aclose()
        server.close()


def job() -> Job:
    request = GenerationRequest(endpoint=Endpoint.COMPLETION, model="m", prompt="x", stream=True, raw=RAW)
    return Job(request=request, model="m", draft_length=0, request_id="r")


async def drain(stream: Stream) -> None:
    while await stream.next() is not None:
        pass


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("api_key", ["sk-secret", None])
async def test_only_the_clients_own_credentials_are_its_fault(status: int, api_key: str | None) -> None:
    async with answering(status, b'{"error": {"message": "bad key sk-secret"}}', api_key) as upstream:
        with pytest.raises(SlipstreamError) as caught:
            await upstream.open(job())
    reply = error_reply(caught.value)
    assert reply.status == (502 if api_key else status)
    assert (b"sk-secret" in reply.body) == (api_key is None)


@pytest.mark.parametrize("body", [b"<html>no such page</html>", b"", b'["no object"]', b'{"a": "\xff"}'])
async def test_refusals_that_are_no_json_get_openais_error_body(body: bytes) -> None:
    async with answering(404, body) as upstream:
        with pytest.raises(SlipstreamError) as caught:
            await upstream.open(job())
    reply = error_reply(caught.value)
    assert reply.status == 404
    assert (b"content-type", b"application/json") in reply.headers
    assert set(json.loads(reply.body)["error"]) == {"message", "type", "param", "code"}


async def test_generated_text_is_not_taken_for_the_end() -> None:
    async with answering(200, b'data: {"choices": [{"text": "data: [DONE]"}]}\n\n') as upstream:
        stream = await upstream.open(job())
        with pytest.raises(UpstreamFailed, match="prematurely"):
            await drain(stream)
        await stream.aclose()


@pytest.mark.parametrize("end", [b"data: [DONE]\n\n", b"data: [DONE]\r\n\r\n"])
async def test_done_on_a_line_of_its_own_is_the_end(end: bytes) -> None:
    async with answering(200, b'data: {"choices": [{"text": "a"}]}\n\n' + end) as upstream:
        stream = await upstream.open(job())
        await drain(stream)
        await stream.aclose()


@pytest.mark.parametrize(("ends", "connections"), [(True, 1), (False, 2)])
async def test_a_stream_ends_with_its_last_event_not_with_its_connection(ends: bool, connections: int) -> None:
    """Clients leave after the last event. The connection serves the next request if the body ends soon enough."""
    used: list[object] = []
    body_ends = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        used.append(request.transport)
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"data: [DONE]\n\n")
        await body_ends.wait()
        return response

    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    async with TestServer(app) as server:
        upstream = OpenAiUpstream(str(server.make_url("")), connect_timeout_s=5)
        client = upstream._client
        for _ in range(2):
            body_ends.clear()
            stream = await upstream.open(job())
            await drain(stream)
            await stream.aclose()
            if ends:
                body_ends.set()
                await soon(lambda: client._idle, "the connection is free")
            else:
                await soon(lambda: not client._all, "the connection is closed")
        body_ends.set()
        await upstream.aclose()
    assert len(set(used)) == connections
