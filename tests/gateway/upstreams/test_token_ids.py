"""Token ids are taken out of an answer. The events are vLLM's, of a request with `return_token_ids`."""

from __future__ import annotations

from slipstream_gateway.upstreams.token_ids import TokenIds

CHAT = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
    b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],'
    b'"prompt_text":null%s}\n\n'
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
    b'"delta":{"content":"\\"token_ids\\":[1]"},"logprobs":null,"finish_reason":null%s}]}\n\n'
)
WITHOUT_TEXT = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
    b'"delta":{},"logprobs":null,"finish_reason":null,"token_ids":[77]}]}\n\n'
)
LAST = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
    b'"delta":{},"logprobs":null,"finish_reason":"stop","stop_reason":null%s}]}\n\ndata: [DONE]\n\n'
)
BODY = (
    b'{"id":"c","choices":[{"index":0,"message":{"content":"say \\"token_ids\\":[5]"}%s}]'
    b'%s,"usage":{"prompt_tokens":2}}'
)


def test_stream_without_its_ids_is_the_stream_that_nobody_asked_ids_of() -> None:
    ids = TokenIds(stream=True)
    told = CHAT % (b',"prompt_token_ids":[2,55]', b',"token_ids":[71,1368]')
    assert ids.take(told) == CHAT % (b"", b"")
    assert ids.pop() == ((71, 1368), (2, 55))
    assert ids.take(WITHOUT_TEXT) == b""
    assert ids.take(LAST % b',"token_ids": [4]') == LAST % b""
    assert ids.pop() == ((77, 4), ())
    assert ids.pop() == ((), ())


def test_body_without_its_ids_is_the_body_that_nobody_asked_ids_of() -> None:
    ids = TokenIds(stream=False)
    assert ids.take(BODY % (b', "token_ids":[1, 2]', b',"prompt_token_ids":[]')) == BODY % (b"", b"")
    assert ids.pop() == ((1, 2), ())


def test_bytes_without_ids_stay_as_they_are() -> None:
    for stream, data in (
        (True, CHAT % (b',"prompt_token_ids":null', b',"token_ids":null')),
        (False, b'{"choices":[]}'),
    ):
        assert TokenIds(stream=stream).take(data) == data
