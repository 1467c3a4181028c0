"""Token ids are taken out of an answer so that the client's bytes are those of the same request without them.

The events are vLLM's, of one request with `return_token_ids` and one without.
"""

from __future__ import annotations

from slipstream_gateway.upstreams.token_ids import TokenIds

CHAT = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
    b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],'
    b'"prompt_token_ids":%s,"prompt_text":null}\n\n'
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
    b'"delta":{"content":"\\"token_ids\\":[1]"},"logprobs":null,"finish_reason":null,"token_ids":%s}]}\n\n'
)
WITHOUT_TEXT = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
    b'"delta":{},"logprobs":null,"finish_reason":null,"token_ids":[77]}]}\n\n'
)
LAST = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
    b'"delta":{},"logprobs":null,"finish_reason":"stop","stop_reason":null,"token_ids":%s}]}\n\ndata: [DONE]\n\n'
)
BODY = (
    b'{"id":"c","choices":[{"index":0,"message":{"content":"say \\"token_ids\\":[5]"},"token_ids":%s}],'
    b'"prompt_token_ids":%s,"usage":{"prompt_tokens":2}}'
)


def test_stream_without_its_ids_is_the_stream_that_nobody_asked_ids_of() -> None:
    ids = TokenIds(stream=True)
    assert ids.take(CHAT % (b"[2,55]", b"[71,1368]")) == CHAT % (b"null", b"null")
    assert ids.pop() == ((71, 1368), (2, 55))
    assert ids.take(WITHOUT_TEXT) == b""
    assert ids.take(LAST % b"[4]") == LAST % b"null"
    assert ids.pop() == ((77, 4), ())
    assert ids.pop() == ((), ())


def test_body_without_its_ids_is_the_body_that_nobody_asked_ids_of() -> None:
    ids = TokenIds(stream=False)
    assert ids.take(BODY % (b"[1, 2]", b"[]")) == BODY % (b"null", b"null")
    assert ids.pop() == ((1, 2), ())


def test_bytes_without_ids_stay_as_they_are() -> None:
    for stream, data in ((True, CHAT % (b"null", b"null")), (False, b'{"choices":[]}')):
        assert TokenIds(stream=stream).take(data) == data
