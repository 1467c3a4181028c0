"""Requests of every API of vLLM that takes `vllm_xargs`."""

from __future__ import annotations

import os
from io import BytesIO
from typing import Any

import pytest
import vllm.entrypoints.openai.api_server  # noqa: F401  # loads the models of every API, as a server does
from fastapi import UploadFile
from scripted import configuration
from slipstream_vllm.admission import check_request
from slipstream_vllm.errors import BadRequest
from slipstream_vllm.resumption import RESUME_KEY, continued
from transformers import AutoTokenizer
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.speech_to_text.transcription.protocol import TranscriptionRequest
from vllm.entrypoints.speech_to_text.translation.protocol import TranslationRequest
from vllm.sampling_params import SamplingParams

TARGET = os.environ["SLIPSTREAM_TARGET"]
HELLO = [{"role": "user", "content": "hello"}]
BODIES: tuple[tuple[Any, dict[str, Any]], ...] = (
    (ChatCompletionRequest, {"messages": HELLO}),
    (CompletionRequest, {"prompt": "hello"}),
    (ResponsesRequest, {"input": "hello"}),
    (AnthropicMessagesRequest, {"messages": HELLO, "max_tokens": 4, "model": "m"}),
    (TranscriptionRequest, {"file": UploadFile(BytesIO(b"sound"))}),
    (TranslationRequest, {"file": UploadFile(BytesIO(b"sound"))}),
)


@pytest.fixture(scope="module")
def config() -> Any:
    return configuration(TARGET, asynchronous=False)


@pytest.mark.parametrize(("model", "body"), BODIES, ids=lambda value: getattr(value, "__name__", ""))
def test_true_is_no_length(config: Any, model: Any, body: dict[str, Any]) -> None:
    xargs = model.model_validate({**body, "vllm_xargs": {"slipstream_draft_length": True}}).vllm_xargs
    with pytest.raises(BadRequest, match="slipstream_draft_length is True"):
        check_request(config, SamplingParams(extra_args=xargs))


def test_only_the_fields_of_the_plugin_are_known(config: Any) -> None:
    check_request(config, SamplingParams(extra_args={"another_plugins_field": 1, "slipstream_draft_length": 2}))
    with pytest.raises(BadRequest, match=r"vllm_xargs\.slipstream_classes is unknown") as refused:
        check_request(config, SamplingParams(extra_args={"slipstream_classes": "a"}))
    assert refused.value.parameter == "vllm_xargs.slipstream_classes"


def test_a_resumed_answer_begins_after_its_tokens() -> None:
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    prompt = {"type": "token", "prompt_token_ids": [5, 6]}
    assert continued(prompt, {"slipstream_draft_length": 2}, tokenizer) is prompt
    assert continued(prompt, {RESUME_KEY: [7, 8]}, tokenizer) == {"type": "token", "prompt_token_ids": [5, 6, 7, 8]}
    assert prompt["prompt_token_ids"] == [5, 6]


def test_a_resumed_answer_that_another_server_cannot_continue_is_refused() -> None:
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    prompt = {"type": "token", "prompt_token_ids": [5, 6]}
    for value in ([True], "ab", [2048], [-1]):
        with pytest.raises(BadRequest, match="a list of token ids is required") as refused:
            continued(prompt, {RESUME_KEY: value}, tokenizer)
        assert refused.value.parameter == f"vllm_xargs.{RESUME_KEY}"
    for of_text, known in (("text", tokenizer), (prompt, None)):
        with pytest.raises(BadRequest, match="needs a prompt of tokens, and a tokenizer"):
            continued(of_text, {RESUME_KEY: [7]}, known)
