"""The official `openai` package as the client, an OpenAI-compatible server as the upstream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest

from tests.gateway.pair_manifest import manifest_text

SUMMARY = "Summarize the following support call for the CRM: reason, agent actions, outcome, next step. "


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="sk-test", max_retries=0, timeout=20)


@pytest.fixture
def served(gateway: Callable[..., Any], openai_server: Callable[..., Any]) -> Any:
    """One gateway with a plain and a speculative server behind it."""
    plain, speculative = openai_server(), openai_server()
    # Easily sure, so that a long summary speculates before anything is measured; and nothing is left to chance.
    policy = ", confidence: 0.6, holdBackShare: 0, explorationShare: 0"
    text = manifest_text([plain.url], [speculative.url], upstream_model="org/acme-7b", policy=policy)
    running = gateway(text)
    running.plain, running.speculative = plain, speculative
    return running


def ask(url: str, script: str, **more: Any) -> Any:
    messages = [{"role": "user", "content": script}]
    return client(url).chat.completions.create(model="acme", messages=messages, **more)


def test_chat_answer_carries_text_usage_and_the_public_model_name(served: Any) -> None:
    answer = ask(served.url, "tokens=4")
    assert answer.choices[0].message.content == "word word word word "
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == "acme"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 4)
    assert answer.usage.completion_tokens_details.accepted_prediction_tokens == 2
    assert (served.plain.requests + served.speculative.requests)[0]["model"] == "org/acme-7b"


def test_long_summary_speculates_and_short_question_does_not(served: Any) -> None:
    raw = client(served.url).chat.completions.with_raw_response
    long = raw.create(model="acme", messages=[{"role": "user", "content": SUMMARY * 4}])
    short = raw.create(model="acme", messages=[{"role": "user", "content": "hi"}], max_tokens=2)
    assert long.headers["x-slipstream-arm"] == "speculative"
    assert long.headers["x-slipstream-class"] == "summarization/long"
    assert long.headers["x-slipstream-reason"] == "speculation_pays"
    assert long.headers["x-slipstream-draft-length"] == "5"
    assert short.headers["x-slipstream-arm"] == "plain"
    assert short.headers["x-slipstream-draft-length"] == "0"
    assert (len(served.speculative.requests), len(served.plain.requests)) == (1, 1)
    assert len(long.headers["x-request-id"]) == 32


@pytest.mark.parametrize("script", ["tokens=5", "tokens=5 crlf", "tokens=5 split=7", "tokens=5 nousage"])
def test_stream_starts_with_the_role_and_has_every_token(served: Any, script: str) -> None:
    chunks = list(ask(served.url, script, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "w0 w1 w2 w3 w4 "
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert {chunk.model for chunk in chunks} == {"acme"}
    assert all(chunk.usage is None for chunk in chunks)
    assert served.metric("slipstream_output_tokens_total") == 5


def test_include_usage_ends_with_a_usage_chunk(served: Any) -> None:
    chunks = list(ask(served.url, "tokens=3", stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 3


def test_text_parts_and_all_sampling_parameters_reach_the_upstream(served: Any) -> None:
    parts = [{"type": "text", "text": "tokens=2 "}, {"type": "text", "text": "x"}]
    given = {"temperature": 0.5, "top_p": 0.9, "seed": 7, "stop": ["a", "b"], "n": 2, "max_completion_tokens": 9}
    ask(served.url, "tokens=1", **given)
    assert {name: served.plain.requests[0][name] for name in given} == given
    answer = client(served.url).chat.completions.create(
        model="acme",
        messages=[{"role": "user", "content": parts}],  # type: ignore[list-item]
        n=2,
    )
    assert [choice.index for choice in answer.choices] == [0, 1]


def test_completions_endpoint_takes_a_prompt(served: Any) -> None:
    chunks = client(served.url).completions.create(model="acme", prompt="tokens=2", stream=True)
    assert len(list(chunks)) == 4
    assert (served.plain.requests + served.speculative.requests)[0]["prompt"] == "tokens=2"


def test_models_are_listed_and_an_unknown_one_says_nothing_of_the_others(served: Any) -> None:
    assert [model.id for model in client(served.url).models.list()] == ["acme"]
    assert client(served.url).models.retrieve("acme").owned_by == "slipstream"
    with pytest.raises(openai.NotFoundError) as missing:
        client(served.url).models.retrieve("org/other")
    assert "acme" not in str(missing.value)
    with pytest.raises(openai.NotFoundError) as unknown:
        client(served.url).chat.completions.create(model="nope", messages=[{"role": "user", "content": "x"}])
    assert unknown.value.code == "model_not_found"
    assert "acme" not in str(unknown.value)


def test_client_may_choose_where_the_policy_allows(served: Any) -> None:
    raw = client(served.url).chat.completions.with_raw_response.create(
        model="acme", messages=[{"role": "user", "content": "hi"}], extra_headers={"x-slipstream-mode": "speculative"}
    )
    assert raw.headers["x-slipstream-arm"] == "speculative"
    assert raw.headers["x-slipstream-reason"] == "client_asked"


def test_authorization_and_trace_context_are_passed_on(served: Any) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    client(served.url).completions.create(model="acme", prompt="hi", max_tokens=2, extra_headers={"traceparent": trace})
    assert served.plain.headers[0]["authorization"] == "Bearer sk-test"
    assert served.plain.headers[0]["traceparent"] == trace
