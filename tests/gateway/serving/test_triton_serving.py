"""The official `openai` client, the gateway, the real Triton with the embedded pair."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from slipstream_core.manifest import EMBEDDED_MANIFEST

from tests.support.polling import PATIENCE_S, eventually

MODEL = "slipstream-embedded"
SUMMARY = (
    "Summarise this call for the CRM.\n\n"
    "Agent: Hello, this is Clara, how can I help you?\nCustomer: Hello, my name is Mara Osterova. I was charged twice "
    "for my coffee machine.\nAgent: I am sorry to hear that. May I have your account number?\n"
    "Customer: It is 4820917.\n"
    "Agent: I am reversing the second payment now.\nCustomer: Thank you.\n"
    "Agent: The money is on its way to you: 89.90 EUR.\nCustomer: I understand.\n"
    "Agent: It should take about 3 days.\nCustomer: Great, thank you so much."
)  # its answer is long: the tests below cut it short


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)


def ask(url: str, text: str = SUMMARY, mode: str = "auto", **more: Any) -> Any:
    """The answer. `mode="speculative"` fixes the draft length, as an engine that may choose it may draft nothing."""
    messages: Any = [{"role": "user", "content": text}]
    headers = {"x-slipstream-mode": mode} | ({"x-slipstream-draft-length": "6"} if mode == "speculative" else {})
    options = {"temperature": 0, "max_tokens": 48, **more}
    return client(url).chat.completions.create(model=MODEL, messages=messages, extra_headers=headers, **options)


def streamed(chunks: Any) -> tuple[str, Any]:
    """The text of a stream and its usage."""
    text, usage = "", None
    for chunk in chunks:
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
        usage = chunk.usage or usage
    return text, usage


def untimed(usage: Any) -> Any:
    """`usage` without the engine's time and the random seed, which differ in each run."""
    told = usage.model_dump()
    assert isinstance(told["slipstream"].pop("seed"), int)
    assert told["slipstream"].pop("engine_seconds") > 0.0
    return told


def test_speculative_and_plain_and_streamed_and_not_give_the_same_greedy_text(gateway_url: str) -> None:
    plain = ask(gateway_url, mode="plain")
    speculative = ask(gateway_url, mode="speculative")
    options = {"stream": True, "stream_options": {"include_usage": True}}
    text, usage = streamed(ask(gateway_url, mode="speculative", **options))
    assert plain.choices[0].message.content
    assert plain.choices[0].message.content == speculative.choices[0].message.content == text
    assert plain.usage.completion_tokens_details.accepted_prediction_tokens == 0
    details = speculative.usage.completion_tokens_details
    assert details.accepted_prediction_tokens + details.rejected_prediction_tokens > 0
    assert untimed(usage) == untimed(speculative.usage)


def test_usage_says_what_the_engine_did_beside_openais_fields(gateway_url: str) -> None:
    messages: Any = [{"role": "user", "content": SUMMARY}]
    headers = {"x-slipstream-mode": "speculative", "x-slipstream-draft-length": "3", "x-slipstream-learn": "off"}
    options = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 48, "extra_headers": headers}
    completions = client(gateway_url).chat.completions
    raw = completions.with_raw_response.create(**options)
    assert raw.headers["x-slipstream-draft-length"] == "3"
    usage = raw.parse().usage
    _, streamed_usage = streamed(completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert untimed(usage) == untimed(streamed_usage)
    found = usage.model_extra["slipstream"]
    assert 0.0 < found["engine_seconds"] < 60.0
    details = usage.completion_tokens_details
    assert found["draft_length"] == 3
    assert len(found["rejected_at"]) <= 3
    assert sum(found["rejected_at"]) <= found["target_steps"]
    # Every step yields what it accepted and one token of the target's own; the first token came with the prompt.
    assert usage.completion_tokens == details.accepted_prediction_tokens + found["target_steps"] + 1
    plain = ask(gateway_url, mode="plain").usage.model_extra["slipstream"]
    assert (plain["draft_length"], sum(plain["rejected_at"])) == (0, 0)


def test_response_says_arm_class_reason_draft_length_and_saving(gateway_url: str) -> None:
    """What the gateway would choose here depends on what the tests before taught it, so it is told."""
    raw = client(gateway_url).chat.completions.with_raw_response
    messages: Any = [{"role": "user", "content": SUMMARY}]
    for mode, draft_length in (("speculative", "6"), ("plain", "0")):
        headers = {"x-slipstream-mode": mode}
        answer = raw.create(model=MODEL, messages=messages, max_tokens=40, temperature=0, extra_headers=headers)
        assert answer.headers["x-slipstream-arm"] == mode
        assert answer.headers["x-slipstream-reason"] == "client_asked"
        assert answer.headers["x-slipstream-class"].startswith("summarization/")
        assert answer.headers["x-slipstream-draft-length"] == draft_length
        saving_ms = answer.headers["x-slipstream-saving-ms"]
        assert f"{float(saving_ms):.1f}" == saving_ms


def test_seed_repeats_an_answer_and_no_seed_draws_a_new_one(gateway_url: str) -> None:
    options = {"temperature": 2, "max_tokens": 96}  # at 1.5, every third answer of 32 tokens is the same
    assert (
        ask(gateway_url, seed=-(2**63), **options).choices[0].message.content
        == ask(gateway_url, seed=-(2**63), **options).choices[0].message.content
    )
    texts = {ask(gateway_url, **options).choices[0].message.content for _ in range(4)}
    assert len(texts) > 1


def test_a_seed_gives_one_text_on_both_arms_at_every_draft_length(gateway_url: str) -> None:
    options = {"temperature": 1.3, "max_tokens": 96, "seed": 7}
    texts = {ask(gateway_url, mode=mode, **options).choices[0].message.content for mode in ("plain", "speculative")}
    for length in (1, 3, 6):
        messages: Any = [{"role": "user", "content": SUMMARY}]
        headers = {"x-slipstream-mode": "speculative", "x-slipstream-draft-length": str(length)}
        answer = client(gateway_url).chat.completions.create(
            model=MODEL, messages=messages, extra_headers=headers, **options
        )
        texts.add(answer.choices[0].message.content)
    assert len(texts) == 1


def test_usage_has_the_seed_that_repeats_an_answer(gateway_url: str) -> None:
    options = {"temperature": 1.3, "max_tokens": 48}
    first = ask(gateway_url, mode="speculative", **options)
    seed = first.usage.model_extra["slipstream"]["seed"]
    second = ask(gateway_url, mode="plain", seed=seed, **options)
    assert second.usage.model_extra["slipstream"]["seed"] == seed
    assert second.choices[0].message.content == first.choices[0].message.content
    _, usage = streamed(ask(gateway_url, seed=seed, stream=True, stream_options={"include_usage": True}, **options))
    assert usage.model_extra["slipstream"]["seed"] == seed


def test_fingerprint_is_that_of_the_target_on_every_endpoint_and_arm(gateway_url: str) -> None:
    eventually(lambda: ask(gateway_url, max_tokens=1).system_fingerprint is not None, "the engine's facts")
    found = {ask(gateway_url, mode=mode, max_tokens=2).system_fingerprint for mode in ("plain", "speculative")}
    found |= {chunk.system_fingerprint for chunk in ask(gateway_url, max_tokens=2, stream=True)}
    completions = client(gateway_url).completions
    found.add(completions.create(model=MODEL, prompt="Hello", max_tokens=2).system_fingerprint)
    found |= {
        chunk.system_fingerprint for chunk in completions.create(model=MODEL, prompt="Hello", max_tokens=2, stream=True)
    }
    [fingerprint] = found
    assert re.fullmatch("fp_[0-9a-f]{16}", fingerprint)


@pytest.mark.parametrize("stream", [False, True])
def test_several_choices_are_the_answers_of_consecutive_seeds(gateway_url: str, stream: bool) -> None:
    options = {"temperature": 1.2, "max_tokens": 16, "mode": "plain"}
    single = [ask(gateway_url, seed=5 + index, **options).choices[0].message.content for index in range(3)]
    if not stream:
        answer = ask(gateway_url, seed=5, n=3, **options)
        assert [choice.message.content for choice in answer.choices] == single
        return
    texts = ["", "", ""]
    for chunk in ask(gateway_url, seed=5, n=3, stream=True, **options):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == single


def test_stop_strings_and_limits_give_their_finish_reasons(gateway_url: str) -> None:
    whole = ask(gateway_url, mode="plain").choices[0].message.content
    word = whole.split()[3]
    stopped = ask(gateway_url, mode="speculative", stop=[word])
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].message.content == whole[: whole.index(word)]
    assert ask(gateway_url, max_tokens=3).choices[0].finish_reason == "length"


@pytest.mark.parametrize("top_p", [0, 1e-50])
def test_top_p_of_nothing_means_the_likeliest_token(gateway_url: str, top_p: float) -> None:
    """1e-50 is 0 in float32, the type of the model's tensor."""
    likeliest = ask(gateway_url, max_tokens=12).choices[0].message.content
    answer = ask(gateway_url, max_tokens=12, temperature=1, top_p=top_p)
    assert answer.choices[0].message.content == likeliest


def test_completions_take_text_and_token_ids(gateway_url: str) -> None:
    text = client(gateway_url).completions.create(model=MODEL, prompt="Summary:", max_tokens=8, temperature=0)
    ids = client(gateway_url).completions.create(model=MODEL, prompt=[5, 6, 7], max_tokens=8, temperature=0)
    assert text.object == "text_completion"
    assert text.usage.completion_tokens <= 8
    assert ids.usage.prompt_tokens == 3


@pytest.mark.parametrize(
    ("field", "value"), [("best_of", 2), ("tools", [{"type": "function"}]), ("unheard_of", 1), ("bad_words", ["x"])]
)
def test_parameter_that_no_arm_can_honour_gets_400_naming_it(gateway_url: str, field: str, value: Any) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], field: value}
    response = httpx.post(f"{gateway_url}/v1/chat/completions", json=body, timeout=PATIENCE_S)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"content": None, "tool_calls": [{"id": "x", "type": "function"}]}, "tool_calls"),
        ({"content": "x", "prefix": True}, "messages[0].prefix"),
    ],
)
def test_messages_that_no_arm_can_honour_get_400_naming_it(
    gateway_url: str, message: dict[str, Any], param: str
) -> None:
    body = {"model": MODEL, "messages": [{"role": "assistant", **message}, {"role": "user", "content": "x"}]}
    response = httpx.post(f"{gateway_url}/v1/chat/completions", json=body, timeout=PATIENCE_S)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    metrics = httpx.get(f"{gateway_url}/metrics", timeout=PATIENCE_S).text
    assert 'slipstream_rejections_total{error="unsupported_parameter"}' in metrics


def test_responses_are_refused_by_the_name_of_the_endpoint(gateway_url: str) -> None:
    with pytest.raises(openai.BadRequestError, match="The endpoint '/v1/responses' is not supported") as refused:
        client(gateway_url).responses.create(model=MODEL, input="hi")
    assert refused.value.code == "unsupported_endpoint"


def test_completion_beyond_the_context_blames_its_prompt(gateway_url: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client(gateway_url).completions.create(model=MODEL, prompt="word " * 20_000)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_beyond_the_context_gets_400_with_both_numbers(gateway_url: str, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(gateway_url, "word " * 20_000, stream=stream)
    assert caught.value.code == "context_length_exceeded"
    numbers = [int(part) for part in str(caught.value).replace(",", " ").split() if part.isdigit()]
    assert len(numbers) >= 2


def test_megabyte_word_is_an_answer_or_a_clear_error(gateway_url: str) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x" * 1_000_000}], "max_tokens": 4}
    response = httpx.post(f"{gateway_url}/v1/chat/completions", json=body, timeout=PATIENCE_S)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"


def test_client_that_leaves_frees_the_engine(gateway_url: str) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": SUMMARY}], "stream": True, "max_tokens": 500}
    for _ in range(12):  # more than the engine decodes at once: were they not cancelled, the last would wait long
        with httpx.stream("POST", f"{gateway_url}/v1/chat/completions", json=body, timeout=PATIENCE_S) as response:
            next(response.iter_bytes())
    assert ask(gateway_url, max_tokens=4).usage.completion_tokens == 4


def test_deadline_of_the_client_frees_the_engine(gateway_url: str) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": SUMMARY}], "stream": True, "max_tokens": 500}
    url, headers = f"{gateway_url}/v1/chat/completions", {"x-request-timeout": "0.1"}
    for _ in range(12):  # as above
        assert "deadline_exceeded" in httpx.post(url, json=body, timeout=PATIENCE_S, headers=headers).text
    assert ask(gateway_url, max_tokens=4).usage.completion_tokens == 4


def test_metrics_tell_drafted_and_accepted_by_class_and_arm(gateway_url: str) -> None:
    ask(gateway_url, mode="speculative")
    text = httpx.get(f"{gateway_url}/metrics", timeout=PATIENCE_S).text
    for name in ("drafted_tokens", "accepted_tokens", "target_steps"):
        rows = [line for line in text.splitlines() if line.startswith(f"slipstream_{name}_total")]
        assert any('arm="speculative"' in row and float(row.rpartition(" ")[2]) > 0 for row in rows), name


def test_route_explains_with_numbers(gateway: Callable[..., Any], triton_endpoint: str) -> None:
    """By a gateway that has learnt nothing: what pays goes by the paces of what was answered before."""
    text = EMBEDDED_MANIFEST.read_text().replace(
        "kind: slipstream\n", f'kind: slipstream\n    endpoints: ["grpc://{triton_endpoint}"]\n'
    )
    body = {"model": MODEL, "messages": [{"role": "user", "content": SUMMARY}]}
    answer = httpx.post(f"{gateway(text).url}/v1/route", json=body, timeout=PATIENCE_S).json()
    assert answer["arm"] == "speculative"
    assert json.dumps(answer["numbers"])
