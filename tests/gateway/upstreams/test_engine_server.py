"""A vLLM server's refusals and broken events, over real sockets."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from slipstream_core.errors import UpstreamFailed, UpstreamRejected, UpstreamUnavailable
from slipstream_core.types import Endpoint, GenerationRequest
from slipstream_gateway.upstreams.base import Committed, Job
from slipstream_gateway.upstreams.engine_server import EngineUpstream
from slipstream_gateway.upstreams.http_transport import HttpTransport

from tests.support.http_server import Asked, Reply
from tests.support.http_server import answering as replying

pytestmark = pytest.mark.integration

COUNTS = {"num_draft_tokens": 4, "num_accepted_draft_tokens": 2, "num_spec_steps": 2}
USAGE = {"prompt_tokens": 1, "completion_tokens": 4, "total_tokens": 5}
METRICS = {"speculative_decoding": COUNTS}


@contextlib.asynccontextmanager
async def answering(status: int, body: bytes) -> AsyncIterator[EngineUpstream]:
    """An upstream whose server gives every POST the same answer, and has no plugin."""

    with replying(lambda asked: Reply(404, b"{}") if asked.method == "GET" else Reply(status, body)) as url:
        async with contextlib.aclosing(EngineUpstream(HttpTransport(url, connect_timeout_s=5.0))) as upstream:
            yield upstream


def job(endpoint: Endpoint) -> Job:
    request = GenerationRequest(endpoint=endpoint, model="m", stream=True, raw=b'{"model": "m", "stream": true}')
    return Job(request=request, model="m", draft_length=4, request_id="r")


def refusal(param: str | None, message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "BadRequestError", "param": param, "code": 400}}).encode()


async def test_a_client_that_quotes_the_gateways_field_is_refused_itself() -> None:
    body = refusal("temperature", "temperature is 'vllm_xargs.slipstream_draft_length'")
    async with answering(400, body) as upstream:
        with pytest.raises(UpstreamRejected) as refused:
            await upstream.open(job(Endpoint.CHAT))
    assert refused.value.body == body


async def test_a_refused_draft_length_is_the_servers_failure() -> None:
    async with answering(400, refusal("vllm_xargs.slipstream_draft_length", "too long")) as upstream:
        with pytest.raises(UpstreamFailed, match="draft length"):
            await upstream.open(job(Endpoint.CHAT))


def response_end(**fields: object) -> bytes:
    response = {"object": "response", "usage": USAGE, "metrics": METRICS}
    return b"data: " + json.dumps({"response": response, **fields}).encode() + b"\n\n"


@pytest.mark.parametrize(
    ("endpoint", "event"),
    [
        (Endpoint.RESPONSES, response_end()),
        (Endpoint.RESPONSES, response_end(type=7)),
        (Endpoint.RESPONSES, b'data: {"type": "response.completed", "metrics": {"speculative_decoding": {}\n\n'),
        (
            Endpoint.CHAT,
            b"data: "
            + json.dumps(
                {"choices": [{}], "usage": USAGE | {"completion_tokens_details": []}, "metrics": METRICS}
            ).encode()
            + b"\n\n",
        ),
    ],
    ids=["no type", "a type that is no text", "no JSON", "details that are no object"],
)
async def test_an_event_that_cannot_be_read_is_the_servers_failure(endpoint: Endpoint, event: bytes) -> None:
    async with answering(200, event) as upstream:
        with pytest.raises(UpstreamFailed, match="malformed event"):
            await upstream.open(job(endpoint))


@pytest.mark.parametrize(("longest", "sent"), [(8, 4), (2, 2), (0, 0)])
async def test_a_draft_is_no_longer_than_the_server_takes(longest: int, sent: int) -> None:
    """The decision may be older than the description."""
    bodies: list[dict[str, Any]] = []

    def reply(asked: Asked) -> Reply:
        if asked.method == "GET":
            return Reply(200, json.dumps({"plugin": "1", "max_draft_length": longest}).encode())
        bodies.append(json.loads(asked.body))
        return Reply(500, b"{}")

    with replying(reply) as url:
        async with contextlib.aclosing(EngineUpstream(HttpTransport(url, connect_timeout_s=5.0))) as upstream:
            await upstream.meet()
            with pytest.raises(UpstreamFailed):
                await upstream.complete(job(Endpoint.CHAT))
    assert [body["vllm_xargs"]["slipstream_draft_length"] for body in bodies] == [sent]


async def test_an_answer_that_the_server_does_not_continue_never_begins_anew() -> None:
    async with answering(200, b"{}") as upstream:
        await upstream.meet()
        resumed = msgspec.structs.replace(job(Endpoint.CHAT), committed=Committed(token_ids=(1, 2), output_tokens=2))
        with pytest.raises(UpstreamUnavailable, match="does not continue"):
            await upstream.open(resumed)
