"""The `openai` client before vLLM inside Triton: tensors where they do, whole requests through them elsewhere."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from slipstream_engine.embedded import demo

from tests.contract.engine_client import CHAT as CHAT_PATH
from tests.contract.engine_client import Engine

MODEL = "slipstream-embedded"
PLAIN = {"x-slipstream-mode": "plain"}
# A fixed draft length: where the engine may choose one, it may draft nothing.
SPECULATIVE = {"x-slipstream-mode": "speculative", "x-slipstream-draft-length": "4"}
CHAT: dict[str, Any] = {"model": MODEL, "messages": demo.ONE_LINE_STATUS, "temperature": 0, "max_tokens": 48}
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "status", "schema": SCHEMA}}
TOOL: Any = {"type": "function", "function": {"name": "report", "parameters": SCHEMA}}


@pytest.fixture
async def client(vllm_triton_gateway: str) -> Any:
    async with AsyncOpenAI(base_url=f"{vllm_triton_gateway}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


async def test_chat_speculates_with_the_plain_answer(client: Any) -> None:
    plain = await client.chat.completions.create(**CHAT, extra_headers=PLAIN)
    raw = await client.chat.completions.with_raw_response.create(**CHAT, extra_headers=SPECULATIVE)
    speculative = raw.parse()
    assert raw.headers["x-slipstream-arm"] == "speculative"
    assert speculative.choices[0].message.content == plain.choices[0].message.content
    assert speculative.usage.completion_tokens_details.accepted_prediction_tokens > 0
    assert plain.usage.completion_tokens_details.accepted_prediction_tokens == 0


async def test_sampled_requests_speculate_where_the_server_has_passed_its_check(client: Any) -> None:
    """The check asks for token ids and for their likelihood, both through Triton."""
    answer = await client.chat.completions.with_raw_response.create(
        **{**CHAT, "temperature": 0.8, "max_tokens": 8}, extra_headers=SPECULATIVE
    )
    assert answer.headers["x-slipstream-arm"] == "speculative", answer.headers["x-slipstream-reason"]


async def test_stream_is_the_whole_answer_in_pieces(client: Any) -> None:
    whole = await client.chat.completions.create(**CHAT)
    stream = await client.chat.completions.create(**CHAT, stream=True, extra_headers=SPECULATIVE)
    pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    assert len(pieces) > 3


@pytest.mark.parametrize("headers", [PLAIN, SPECULATIVE], ids=["plain", "speculative"])
@pytest.mark.parametrize("stream", [False, True])
async def test_structured_output_keeps_the_schema(client: Any, headers: Any, stream: bool) -> None:
    # With other prompts the small target may write white space, which JSON allows, for ever.
    messages = [{"role": "user", "content": "Order 48213: status in one line."}]
    request = {**CHAT, "messages": messages, "response_format": FORMAT, "extra_headers": headers}
    if stream:
        events = await client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in events]
        content = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        usage = chunks[-1].usage
        assert {chunk.model for chunk in chunks} == {MODEL}
    else:
        answer = await client.chat.completions.create(**request)
        content, usage = answer.choices[0].message.content, answer.usage
        assert answer.model == MODEL
    assert json.loads(content)["ok"] in (True, False)
    assert usage.completion_tokens > 0
    assert (usage.slipstream["draft_length"] > 0) == (headers is SPECULATIVE)


async def test_tool_call_is_the_one_that_vllm_makes(client: Any, vllm_model: Engine) -> None:
    body = {
        **CHAT,
        "max_tokens": 64,
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "report"}},
    }
    answer = await client.chat.completions.create(**body)
    [call] = answer.choices[0].message.tool_calls
    assert call.function.name == "report"
    response = await vllm_model.http.post(CHAT_PATH, json={**body, "model": vllm_model.model})
    [direct] = response.json()["choices"][0]["message"]["tool_calls"]
    assert direct["function"]["arguments"] == call.function.arguments != ""


@pytest.mark.parametrize("headers", [PLAIN, SPECULATIVE], ids=["plain", "speculative"])
async def test_log_probabilities_come_with_their_alternatives(client: Any, headers: Any) -> None:
    answer = await client.chat.completions.create(
        **{**CHAT, "max_tokens": 8}, logprobs=True, top_logprobs=3, extra_headers=headers
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == 8
    for position in content:
        assert position.logprob <= 0
        assert len(position.top_logprobs) == 3
        assert position.logprob == max(entry.logprob for entry in position.top_logprobs)  # greedy


async def test_several_answers_to_one_prompt(client: Any) -> None:
    answer = await client.completions.create(model=MODEL, prompt="a", temperature=1.5, max_tokens=16, n=3, seed=5)
    assert sorted(choice.index for choice in answer.choices) == [0, 1, 2]
    assert len({choice.text for choice in answer.choices}) > 1


async def test_text_completion_with_echo_and_stop(client: Any) -> None:
    answer = await client.completions.create(
        model=MODEL, prompt="Order 48213:", temperature=0, max_tokens=24, stop=[","], echo=True
    )
    assert answer.choices[0].text.startswith("Order 48213:")
    assert "," not in answer.choices[0].text


async def test_responses_api_creates_and_streams(client: Any) -> None:
    request = {"model": MODEL, "input": "What is the status of order 48213?", "temperature": 0, "max_output_tokens": 24}
    whole = await client.responses.create(**request)
    stream = await client.responses.create(**request, stream=True)
    events = [event async for event in stream]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text != ""
    assert events[-1].type == "response.completed"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"response_format": {"type": "json_schema"}}, "json_schema"),
        ({"logprobs": True, "top_logprobs": 20_000}, "20000"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"extra_body": {"vllm_xargs": {"slipstream_draft_length": 2}}}, "vllm_xargs.slipstream_draft_length"),
    ],
)
async def test_refusals_name_the_parameter(client: Any, more: dict[str, Any], words: str) -> None:
    with pytest.raises(openai.BadRequestError, match=words):
        await client.chat.completions.create(**CHAT, **more)


async def test_a_client_that_leaves_ends_its_relayed_answer(client: Any) -> None:
    """Sixteen places: answers of minutes that nobody reads would hold up the next."""
    for _ in range(20):
        stream = await client.chat.completions.create(
            **{**CHAT, "max_tokens": 1500, "temperature": 1.0},
            logprobs=True,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        await anext(aiter(stream))
        await stream.close()
    answer = await client.chat.completions.create(**{**CHAT, "max_tokens": 2}, timeout=60)
    assert answer.choices[0].message.content
