"""An OpenAI-compatible server's refusals, and the end of its streams, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from slipstream_core.errors import SlipstreamError, UpstreamFailed, UpstreamRejected
from slipstream_core.types import Endpoint, GenerationRequest
from slipstream_gateway.api.errors import error_reply
from slipstream_gateway.upstreams.base import Job, Piece, Stream
from slipstream_gateway.upstreams.http_transport import HttpTransport
from slipstream_gateway.upstreams.openai_server import OpenAiUpstream

from tests.support.http_server import Asked, Reply
from tests.support.http_server import answering as replying
from tests.support.polling import soon

pytestmark = pytest.mark.integration

RAW = b'{"model": "m", "prompt": "x", "stream": true}'


@contextlib.asynccontextmanager
async def answering(
    status: int, body: bytes, api_key: str | None = None, *, coding: str = "identity"
) -> AsyncIterator[OpenAiUpstream]:
    """An upstream whose server gives every request that permits no coding the same answer."""

    def answer(asked: Asked) -> Reply:
        permitted = asked.headers["accept-encoding"] == "identity"
        return Reply(status if permitted else 406, body, {"content-type": "text/html", "content-encoding": coding})

    with replying(answer) as url:
        async with contextlib.aclosing(
            OpenAiUpstream(HttpTransport(url, connect_timeout_s=5.0), api_key=api_key)
        ) as upstream:
            yield upstream


def job(choices: int = 1) -> Job:
    request = GenerationRequest(
        endpoint=Endpoint.COMPLETION, model="m", prompt="x", stream=True, raw=RAW, choices=choices
    )
    return Job(request=request, model="m", draft_length=0, request_id="r")


async def drain(stream: Stream) -> bytes:
    """What the client gets."""
    data = b""
    while (piece := await stream.next()) is not None:
        assert isinstance(piece, Piece)
        data += piece.data
    return data


async def answer_to(request: Job, body: bytes) -> bytes:
    """The stream that a client gets where the server sends `body`, and ends it regularly."""
    async with answering(200, body) as upstream:
        stream = await upstream.open(request)
        try:
            return await drain(stream)
        finally:
            await stream.aclose()


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


@pytest.mark.parametrize(
    "end",
    [
        b"data: [DONE]\n\n",
        b"data: [DONE]\r\n\r\n",
        b"data: [DONE]\r\r",
        b"data:[DONE]\n\n",
        b"data:  [DONE] \n\n",
        b"data: [DONE]\n",
        b"data: [DONE]",
        b"data: [DONE]\nid: 0123456789012345678901234567890123456789\n\n",
        b"data: [DONE]\n\n: ping - 2026-01-01 00:00:00.000000+00:00\n\n",
        b": before\n\ndata: [DONE]\n\n: bye\n\n: and again\n\n",
    ],
)
async def test_done_on_a_line_of_its_own_is_the_end(end: bytes) -> None:
    event = b'data: {"choices": [{"text": "a"}]}\n\n'
    data = await answer_to(job(), event + end)
    assert data.startswith(event)
    assert b"[DONE]" in data
    assert data.endswith(b"\n\n")


TEXT = b'data: {"choices": [{"index": 0, "text": "a", "finish_reason": null}]}\n\n'
STOP = b'data: {"choices": [{"index": %d, "text": "", "finish_reason": "stop"}]}\n\n'


@pytest.mark.parametrize(
    ("body", "choices"),
    [
        (TEXT + STOP % 0, 1),
        (TEXT + (STOP % 0)[:-1], 1),
        (TEXT + STOP % 1 + STOP % 0, 2),
        (TEXT + STOP % 0 + b'data: {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}', 1),
    ],
)
async def test_a_body_that_ends_after_all_finish_reasons_is_a_whole_answer(body: bytes, choices: int) -> None:
    data = await answer_to(job(choices), body)
    assert data.endswith(b"data: [DONE]\n\n")
    assert data.count(b'"finish_reason": "stop"') == choices


@pytest.mark.parametrize(
    ("body", "choices"),
    [
        (TEXT, 1),
        (TEXT + STOP % 1, 2),
        (TEXT + (STOP % 0)[:20], 1),
        (b'data: {"choices": [{"text": "\\"finish_reason\\": \\"stop\\""}]}\n\n', 1),
    ],
)
async def test_a_body_that_ends_before_them_is_not(body: bytes, choices: int) -> None:
    with pytest.raises(UpstreamFailed, match="prematurely"):
        await answer_to(job(choices), body)


FAILURES = [
    {"error": {"message": "boom", "type": "InternalServerError", "code": 500}},
    {"error": {"message": "boom", "code": 500.0}},
    {"error": {"message": "boom", "code": "server_error", "type": ["odd"]}},
    {"error": "boom", "error_type": "generation"},
    {"error": ["boom"]},
    {"object": "error", "message": "boom", "type": "InternalServerError", "code": 500},
]


@pytest.mark.parametrize("failure", FAILURES, ids=str)
async def test_every_form_of_an_error_is_a_failure(failure: dict[str, object]) -> None:
    event = b"data: " + json.dumps(failure).encode() + b"\n\ndata: [DONE]\n\n"
    with pytest.raises(UpstreamFailed, match="during its stream"):
        await answer_to(job(), TEXT + event)
    async with answering(200, json.dumps(failure).encode()) as upstream:
        with pytest.raises(UpstreamFailed, match="reported an error with status 200"):
            await upstream.complete(job())


async def test_an_event_called_error_is_a_failure() -> None:
    with pytest.raises(UpstreamFailed, match="during its stream"):
        await answer_to(job(), TEXT + b'event: error\ndata: {"code": 500, "message": "boom"}\n\ndata: [DONE]\n\n')


@pytest.mark.parametrize("name", [b"error", b"message"])
async def test_an_error_of_the_request_is_passed_on(name: bytes) -> None:
    error = b'{"error": {"message": "too long", "type": "BadRequestError", "code": 400}}'
    data = await answer_to(job(), TEXT + b"event: " + name + b"\ndata: " + error + b"\n\ndata: [DONE]\n\n")
    assert error in data
    async with answering(200, error) as upstream:
        with pytest.raises(UpstreamRejected) as caught:
            await upstream.complete(job())
    assert (caught.value.status, caught.value.body) == (400, error)


@pytest.mark.parametrize("absent", [b'"error": null', b'"error": {}', b'"error": ""', b'"text": "\\"error\\": 1"'])
async def test_an_answer_with_an_empty_error_is_an_answer(absent: bytes) -> None:
    event = b'data: {"choices": [{"index": 0}], %s}\n\ndata: [DONE]\n\n' % absent
    assert await answer_to(job(), event) == event


async def test_one_json_object_in_place_of_a_stream_is_named() -> None:
    with pytest.raises(UpstreamFailed, match="one JSON object in place of a stream"):
        await answer_to(job(), b'{"choices": [{"text": "a", "finish_reason": "stop"}]}')
    with pytest.raises(UpstreamFailed, match="reported an error with status 200"):
        await answer_to(job(), b'{"error": "boom"}')


async def test_a_compressed_answer_is_named() -> None:
    async with answering(200, b"\x1f\x8b", coding="gzip") as upstream:
        for call in (upstream.open, upstream.complete):
            with pytest.raises(UpstreamFailed, match=r"compressed its answer \('gzip'\)"):
                await call(job())


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
        transport = HttpTransport(str(server.make_url("")), connect_timeout_s=5.0)
        upstream, client = OpenAiUpstream(transport), transport._client
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
