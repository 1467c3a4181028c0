"""Bad requests to vLLM inside Triton: a readable error each with its stable code, and the model goes on serving."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.support.triton_bad_inputs import BAD, USER


@pytest.mark.parametrize(("inputs", "message"), BAD, ids=[message for _, message in BAD])
async def test_bad_input_is_named(vllm_model: Any, inputs: dict[str, Any], message: str) -> None:
    answer = await vllm_model.generate(**inputs)
    assert answer.parts == []
    assert answer.error.startswith("invalid_request: ")
    assert message in answer.error


async def test_prompt_beyond_the_context_is_refused_with_both_numbers(vllm_model: Any) -> None:
    answer = await vllm_model.generate(input_ids=[5] * 60_000)
    assert answer.error.startswith("context_length_exceeded: ")
    assert "60000" in answer.error


@pytest.mark.parametrize("kind", ["text_input", "messages"])
async def test_text_that_cannot_fit_is_refused_untokenized(vllm_model: Any, kind: str) -> None:
    text = "a" * 3_000_000
    answer = await vllm_model.generate(**{kind: text if kind == "text_input" else [{**USER[0], "content": text}]})
    assert answer.error.startswith("context_length_exceeded: ")
    assert "characters; the context of 2048 tokens" in answer.error


@pytest.mark.parametrize(
    ("raw", "more", "message"),
    [
        (b"{", {}, "openai_request is not JSON of the form"),
        (b"\xff", {}, "openai_request is not JSON of the form"),
        (b'{"endpoint": "chat"}', {}, "body"),
        (b'{"endpoint": "audio", "body": {}}', {}, "audio"),
        (b'{"endpoint": "chat", "body": {}, "stream": true}', {}, "stream"),
        (b'{"endpoint": "chat", "body": {}}', {"stream": True}, "openai_request is a request and allows no other"),
    ],
)
async def test_bad_openai_request_is_refused(vllm_model: Any, raw: bytes, more: dict[str, Any], message: str) -> None:
    answer = await vllm_model.generate(openai_request=list(raw), **more)
    assert answer.error.startswith("invalid_request: ")
    assert message in answer.error


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"model": "embedded", "messages": USER, "temperature": -1}, 400, "temperature"),
        ({"model": "embedded", "messages": USER, "top_logprobs": "many"}, 400, "top_logprobs"),
        ({"model": "another", "messages": USER}, 404, "another"),
        ({"model": "embedded", "messages": USER, "vllm_xargs": {"slipstream_draft_length": 5}}, 400, "draft_length"),
        ({"model": "embedded"}, 400, "messages"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_vllm_refuses_with_its_own_status_and_names_the_field(
    vllm_model: Any, body: dict[str, Any], status: int, words: str, stream: bool
) -> None:
    told, data = await _ask(vllm_model, {"endpoint": "chat", "body": {**body, "stream": stream}})
    assert told == status
    error = json.loads(data)["error"]
    assert error["code"] == status
    assert words in error["message"]


async def test_the_embedded_engine_takes_tensors_only(embedded_model: Any) -> None:
    answer = await embedded_model.generate(openai_request=list(b'{"endpoint": "chat", "body": {}}'))
    assert "unexpected inference input 'openai_request'" in answer.error


async def _ask(model: Any, request: dict[str, Any]) -> tuple[int, bytes]:
    status, data = 0, b""
    raw = np.frombuffer(json.dumps(request).encode(), dtype=np.uint8)
    async for result, error in model.open(openai_request=raw.tolist()):
        assert error is None
        status = int(result.as_numpy("openai_status")[0])
        data += result.as_numpy("openai_response").tobytes()
    return status, data
