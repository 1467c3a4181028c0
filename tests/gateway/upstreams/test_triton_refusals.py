"""A Triton model's refusals in the words of the request."""

from __future__ import annotations

from typing import Any

import pytest
from slipstream_core.errors import ContextLengthExceeded, InvalidRequest
from slipstream_core.types import Endpoint, GenerationRequest, Message
from slipstream_gateway.upstreams.triton_errors import triton_error


def request(prompt: Any = None, **fields: Any) -> GenerationRequest:
    messages = () if prompt is not None else (Message(role="user", content="hi"),)
    endpoint = Endpoint.CHAT if prompt is None else Endpoint.COMPLETION
    return GenerationRequest(endpoint=endpoint, model="m", messages=messages, prompt=prompt, **fields)


@pytest.mark.parametrize(
    ("text", "asked", "param", "message"),
    [
        (
            "text_input holds no tokens",
            request(""),
            "prompt",
            "Invalid 'prompt': expected at least one token, got \"\".",
        ),
        ("the prompt is empty", request(()), "prompt", "Invalid 'prompt': expected at least one token, got []."),
        (
            "messages holds no tokens",
            request(),
            "messages",
            "Invalid 'messages': expected at least one token, got none.",
        ),
        (
            "token id 2000000 is outside the vocabulary of 2048",
            request((5, 2_000_000)),
            "prompt[1]",
            "Invalid 'prompt[1]': expected one of the model's 2048 token ids, got 2000000.",
        ),
        (
            "Token id 2000000 is out of vocabulary",
            request((2_000_000,)),
            "prompt[0]",
            "Invalid 'prompt[0]': expected one of the model's token ids, got 2000000.",
        ),
        (
            "stop[1]: expected 1 to 1024 bytes, got 2000",
            request(),
            "stop[1]",
            "Invalid 'stop[1]': expected 1 to 1024 bytes",
        ),
        ("stop: at most 64 strings, got 65", request(), "stop", "Invalid 'stop': at most 64 strings, got 65."),
        (
            "stop has 5000 characters in all, more than 4096",
            request(),
            "stop",
            "Invalid 'stop': has 5000 characters in all, more than 4096.",
        ),
        (
            "temperature must be between 0 and 100, got 101.0",
            request(),
            "temperature",
            "Invalid 'temperature': must be",
        ),
        (
            "messages: this model has no chat template; send text instead",
            request(),
            "messages",
            "Invalid 'messages': this model has no chat template; send text instead.",
        ),
        (
            "messages[2].role: expected one of system, got 'x'",
            request(),
            "messages[2].role",
            "Invalid 'messages[2].role': expected one of system",
        ),
        (
            "input_ids[3]: a token id cannot be negative, got -5",
            request((1,)),
            "prompt[3]",
            "Invalid 'prompt[3]': a token",
        ),
        ("draft_tokens must not be negative, got -1", request(), None, "draft_tokens must not be negative, got -1"),
        ("", request(), None, ""),
    ],
)
def test_the_field_and_the_value_are_the_requests(
    text: str, asked: GenerationRequest, param: str | None, message: str
) -> None:
    error = triton_error(f"invalid_request: {text}", request=asked)
    assert isinstance(error, InvalidRequest)
    assert str(error).startswith(message)
    assert error.param == param
    assert error.code == (None if param is None else "invalid_value")
    assert not any(tensor in str(error) for tensor in ("text_input", "input_ids"))


@pytest.mark.parametrize(
    ("asked", "param"), [(request("x"), "prompt"), (request((1,)), "prompt"), (request(), "messages")]
)
def test_a_long_prompt_blames_the_field_that_holds_it(asked: GenerationRequest, param: str) -> None:
    error = triton_error("context_length_exceeded: the prompt has 9 tokens; the context of 8", request=asked)
    assert isinstance(error, ContextLengthExceeded)
    assert (error.param, error.code) == (param, "context_length_exceeded")
