"""Numbers and characters that are not JSON: the same in whole answers and in streams, at every endpoint."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slipstream_core.errors import UpstreamRejected
from slipstream_core.types import Endpoint, GenerationRequest
from slipstream_gateway.upstreams.base import Job, Piece
from slipstream_gateway.upstreams.http_transport import HttpTransport
from slipstream_gateway.upstreams.openai_server import OpenAiUpstream
from slipstream_gateway.upstreams.valid_json import valid_events, valid_json

from tests.support.http_server import Reply
from tests.support.http_server import answering as replying

HALF = "\ud83d"
TEXTS = st.text(st.characters(codec=None), max_size=12) | st.sampled_from(
    [HALF, HALF + "\\", '"' + HALF, "\\ud83d", "NaN", '"Infinity', "\ude00" + HALF, "\U0001f600", "-Infinity, NaN"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
_PAIR_OR_HALF = re.compile("[\ud800-\udbff][\udc00-\udfff]|([\ud800-\udfff])")


def as_sent(value: Any) -> Any:
    """`value` as a client is to get it."""
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return None
    if isinstance(value, str):
        whole = _PAIR_OR_HALF.sub(lambda found: "\ufffd" if found[1] else found[0], value)
        return whole.encode("utf-16", "surrogatepass").decode("utf-16")
    if isinstance(value, list):
        return [as_sent(item) for item in value]
    if isinstance(value, dict):
        return {as_sent(name): as_sent(item) for name, item in value.items()}
    return value


@given(VALUES)
def test_whatever_python_writes_is_json_with_the_same_values(value: Any) -> None:
    assert msgspec.json.decode(valid_json(json.dumps(value).encode())) == as_sent(value)


@given(VALUES)
def test_events_get_the_data_of_a_whole_answer(value: Any) -> None:
    body = json.dumps(value).encode()
    block = b': a comment with "NaN\n\nevent: x\ndata: %b\n\ndata: NaN\n\n' % body
    assert valid_events(block) == b': a comment with "NaN\n\nevent: x\ndata: %b\n\ndata: null\n\n' % valid_json(body)


@pytest.mark.parametrize("body", [b'{"a":"NaN \\ud83d\\ude00 \\\\ud83d Infinity"}', b"{}", b'{"a":"\\uD83D\\uDE00"}'])
def test_json_stays_as_it_is(body: bytes) -> None:
    assert valid_json(body) == body


@pytest.mark.parametrize("body", [b'NaN"' + b'\\"' * 1_000_000, b'"NaN' * 500_000, b'"\\ud83d' + b"\\" * 1_000_001])
def test_time_is_linear_in_the_length(body: bytes) -> None:
    """A quadratic time would be hours."""
    assert valid_json(body)


@contextlib.asynccontextmanager
async def answering(status: int, body: bytes) -> AsyncIterator[OpenAiUpstream]:
    """An upstream whose server gives every request the same answer."""

    with replying(lambda _: Reply(status, body)) as url:
        async with contextlib.aclosing(OpenAiUpstream(HttpTransport(url, connect_timeout_s=5.0))) as upstream:
            yield upstream


def job(endpoint: Endpoint, *, stream: bool, choices: int = 1) -> Job:
    raw = b'{"model": "m", "prompt": "x"}'
    request = GenerationRequest(endpoint=endpoint, model="m", prompt="x", stream=stream, raw=raw, choices=choices)
    return Job(request=request, model="m", draft_length=0, request_id="r")


async def sent(job: Job, body: bytes) -> bytes:
    """The answer that a client gets where the server sends `body`."""
    async with answering(200, body) as upstream:
        if not job.request.stream:
            return (await upstream.complete(job)).body.data
        stream, data = await upstream.open(job), b""
        while (piece := await stream.next()) is not None:
            assert isinstance(piece, Piece)
            data += piece.data
        await stream.aclose()
        return data


LOGPROBS = b'"logprobs":{"content":[{"token":"a","logprob":-Infinity,"top_logprobs":[{"token":"b","logprob":NaN}]}]}'
VALID_LOGPROBS = LOGPROBS.replace(b"-Infinity", b"null").replace(b"NaN", b"null")
TEXT, VALID_TEXT = b'"NaN \\ud83d! \\ud83d\\ude00"', b'"NaN \\ufffd! \\ud83d\\ude00"'
CHOICES = b'[{"index":0,"%b":%b,%b,"finish_reason":"stop"},{"index":1,"%b":%b,%b,"finish_reason":"stop"}]'
DATA = {
    Endpoint.COMPLETION: b'{"model":"m","choices":%b}' % (CHOICES % ((b"text", b"TEXT", b"LOGPROBS") * 2)),
    Endpoint.CHAT: b'{"model":"m","choices":%b}' % (CHOICES % ((b"delta", b'{"content":TEXT}', b"LOGPROBS") * 2)),
    Endpoint.RESPONSES: b'{"type":"response.completed","response":{"model":"m","output":[{"text":TEXT,LOGPROBS}]}}',
}


@pytest.mark.integration
@pytest.mark.parametrize("endpoint", DATA)
async def test_whole_answer_and_stream_agree(endpoint: Endpoint) -> None:
    data = DATA[endpoint]
    served = data.replace(b"TEXT", TEXT).replace(b"LOGPROBS", LOGPROBS)
    expected = data.replace(b"TEXT", VALID_TEXT).replace(b"LOGPROBS", VALID_LOGPROBS)
    assert await sent(job(endpoint, stream=False, choices=2), served) == expected
    for end in (b"\n\n", b"\r\r", b"\r\n\r\n"):
        lines = [b"data: " + served, b"data: [DONE]"]
        streamed = await sent(job(endpoint, stream=True, choices=2), end.join([*lines, b""]))
        assert streamed.startswith(b"data: %b\n\n" % expected)


@pytest.mark.integration
async def test_refusal_that_quotes_the_request_is_json() -> None:
    async with answering(400, b'{"error":{"message":"top_p","input":NaN}}') as upstream:
        with pytest.raises(UpstreamRejected) as caught:
            await upstream.complete(job(Endpoint.CHAT, stream=False))
    assert caught.value.body == b'{"error":{"message":"top_p","input":null}}'
