"""One pool of vLLM servers for both arms: draft lengths, counts, features, parameters that vLLM refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from slipstream_tools.up.vllm_server import VllmServer

from tests.gateway.gateway_thread import Gateway
from tests.support.streams import text_of, whole_events_of
from tests.vllm.gateway.conftest import manifest
from tests.vllm.gateway.vllm_answers import WAIT_S, answered, ask, body, counters, explained, until_reason


@pytest.fixture(scope="module", autouse=True)
def verified(served: Gateway) -> None:
    """Nothing speculates on a server before it was checked."""
    until_reason(served, "client_asked")
    until_reason(served, "client_asked", temperature=0.8)


# A fixed draft length: where the engine may choose one, it may draft nothing.
SPECULATIVE = {"x-slipstream-mode": "speculative", "x-slipstream-draft-length": "4"}


def streamed(served: Gateway, **more: Any) -> tuple[str, list[dict[str, Any]]]:
    """The text of a stream with 4 draft tokens a step, and its events."""
    url, headers = f"{served.url}/v1/chat/completions", SPECULATIVE
    answer = httpx.post(url, json=body(stream=True, **more), headers=headers, timeout=WAIT_S)
    assert answer.status_code == 200
    events = whole_events_of(answer.text)
    return text_of(events), events


def test_both_arms_decode_on_one_server_with_the_same_greedy_text(served: Gateway) -> None:
    plain, speculative = ask(served, "plain"), ask(served, "speculative")
    assert (plain.headers["x-slipstream-arm"], plain.headers["x-slipstream-draft-length"]) == ("plain", "0")
    assert (speculative.headers["x-slipstream-arm"], speculative.headers["x-slipstream-draft-length"]) == (
        "speculative",
        "4",
    )
    assert plain.json()["choices"] == speculative.json()["choices"]
    own = plain.json()["usage"]["slipstream"]
    assert own.pop("engine_seconds") > 0.0
    assert own == {"seed": None, "draft_length": 0, "target_steps": 47, "rejected_at": [], "draft": None, "resumed": []}


def test_an_answers_usage_says_what_was_drafted_streamed_or_not(served: Gateway) -> None:
    whole = ask(served, "speculative", length=4).json()
    text, events = streamed(served, stream_options={"include_usage": True})
    assert text == whole["choices"][0]["message"]["content"]
    assert "metrics" not in whole
    assert events[-1]["choices"] == []
    assert "metrics" not in events[-1]
    usage = whole["usage"]
    for told in (usage, events[-1]["usage"]):
        assert told["slipstream"].pop("engine_seconds") > 0.0
    for name in ("completion_tokens", "completion_tokens_details", "slipstream"):
        assert events[-1]["usage"][name] == usage[name]
    accepted = usage["completion_tokens_details"]["accepted_prediction_tokens"]
    drafted = accepted + usage["completion_tokens_details"]["rejected_prediction_tokens"]
    steps = usage["slipstream"]["target_steps"]
    assert drafted == 4 * steps
    # One token of the prompt's pass, then those that each step accepted and its own; the last step may overshoot.
    assert 0 <= 1 + accepted + steps - usage["completion_tokens"] <= 4
    rejected = usage["slipstream"]["rejected_at"]
    assert sum(rejected) <= steps
    assert accepted == sum(position * count for position, count in enumerate(rejected)) + 4 * (steps - sum(rejected))


def test_a_stream_whose_client_asked_for_no_usage_has_none(served: Gateway) -> None:
    _, events = streamed(served)
    assert not any("usage" in event or "metrics" in event for event in events)
    assert all(event["choices"] for event in events)


@pytest.mark.parametrize("length", [1, *(pytest.param(each, marks=pytest.mark.slow) for each in (2, 3, 4))])
def test_a_draft_length_is_the_servers_own_for_that_request(
    served: Gateway, vllm_server: VllmServer, length: int
) -> None:
    before = counters(vllm_server.url)
    answer = ask(served, "speculative", length=length)
    after = counters(vllm_server.url)
    usage = answer.json()["usage"]
    drafted = sum(usage["completion_tokens_details"].values())
    label = answer.headers["x-slipstream-class"], str(length)
    assert usage["slipstream"]["draft_length"] == length
    assert drafted == length * usage["slipstream"]["target_steps"] > 0
    assert {key: after[key] - before.get(key, 0) for key in after if after[key] != before.get(key, 0)} == {
        label: drafted
    }


def test_a_request_that_decodes_plainly_drafts_nothing(served: Gateway, vllm_server: VllmServer) -> None:
    before = counters(vllm_server.url)
    assert ask(served, "plain").json()["usage"]["completion_tokens"] == 48
    assert counters(vllm_server.url) == before


SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"]}
FEATURES: dict[str, dict[str, Any]] = {
    "log-probabilities": {"logprobs": True, "top_logprobs": 3},
    "penalties": {"presence_penalty": 0.7, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    "bad words": {"bad_words": ["billing"]},
    "least tokens": {"min_tokens": 30, "ignore_eos": False},
    "stop token ids": {"stop_token_ids": [40, 45, 50]},
    "stop": {"stop": ["ing"]},
    "a schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
        "ignore_eos": False,
    },
    "a choice": {"structured_outputs": {"choice": ["refund", "exchange"]}, "ignore_eos": False},
    "token ids": {"return_token_ids": True},
    "a seed": {"temperature": 0.8, "seed": 11},
    "several answers": {"temperature": 0.8, "seed": 11, "n": 3},
    "top-k": {"temperature": 0.8, "seed": 11, "top_k": 5, "top_p": 0.9},
    "tokens that are allowed": {"allowed_token_ids": list(range(20, 400))},
    "log-probabilities of the prompt": {"prompt_logprobs": 2},
    "other arguments": {"vllm_xargs": {"own": 1}},
}


QUICK = {"a schema", "a seed"}  # the contract has the others' fields


@pytest.mark.parametrize(
    "feature", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in FEATURES]
)
def test_a_feature_is_the_same_with_drafts_and_without(served: Gateway, feature: str) -> None:
    more = FEATURES[feature]
    decision = explained(served, **more)
    assert (decision["arm"], decision["draft_length"]) == ("speculative", 4)
    plain, speculative = ask(served, "plain", **more), ask(served, "speculative", **more)
    assert plain.status_code == speculative.status_code == 200, speculative.text
    assert speculative.headers["x-slipstream-arm"] == "speculative"
    assert rounded(speculative.json()["choices"]) == rounded(plain.json()["choices"])
    assert rounded(speculative.json()["prompt_logprobs"]) == rounded(plain.json()["prompt_logprobs"])


def rounded(value: Any) -> Any:
    """`value` with its numbers to three digits: batches of other shapes add up in another order."""
    match value:
        case float():
            return round(value, 3)
        case dict():
            return {name: rounded(item) for name, item in value.items()}
        case list():
            return [rounded(item) for item in value]
    return value


def test_what_the_server_does_not_do_is_refused_in_its_own_words(served: Gateway, vllm_server: VllmServer) -> None:
    too_many = {"logprobs": True, "top_logprobs": 50}  # vLLM's --max-logprobs is 20
    through = ask(served, "speculative", **too_many)
    direct = httpx.post(f"{vllm_server.url}/v1/chat/completions", json=body(**too_many), timeout=WAIT_S)
    assert through.status_code == direct.status_code == 400
    assert through.json() == direct.json()


@pytest.mark.parametrize("name", ["min_p", "logit_bias"])
def test_a_parameter_that_a_speculating_vllm_refuses_is_refused_by_its_name(
    served: Gateway, vllm_server: VllmServer, name: str
) -> None:
    value: Any = {"min_p": 0.1, "logit_bias": {"50": 1}}[name]
    sampled = {name: value, "temperature": 0.8}
    direct = httpx.post(f"{vllm_server.url}/v1/chat/completions", json=body(**sampled), timeout=WAIT_S)
    assert direct.status_code == 400  # else there would be no reason to
    for mode in ("plain", "speculative", "auto"):
        answer = ask(served, mode, **sampled)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == name
        assert answer.json()["error"]["code"] == "unsupported_parameter"


def test_a_parameter_without_effect_on_greedy_decoding_is_nothing_to_refuse(served: Gateway) -> None:
    answer = ask(served, "speculative", min_p=0.1)
    assert (answer.status_code, answer.headers["x-slipstream-arm"]) == (200, "speculative")
    assert answer.json()["choices"] == ask(served, "plain").json()["choices"]


def test_plain_servers_take_what_a_speculating_vllm_refuses(
    start_gateway: Callable[..., Gateway], vllm_server: VllmServer, plain_vllm_server: VllmServer
) -> None:
    with_plain = start_gateway(manifest([vllm_server.url], plain=plain_vllm_server.url))
    until_reason(with_plain, "client_asked")
    for more in ({"min_p": 0.1, "temperature": 0.8}, {"logit_bias": {"50": 1}, "n": 2, "temperature": 0.8}):
        before = answered(plain_vllm_server.url)
        answer = ask(with_plain, "speculative", **more)
        assert answer.status_code == 200, answer.text
        headers = {name: answer.headers[f"x-slipstream-{name}"] for name in ("arm", "reason", "draft-length")}
        assert headers == {"arm": "plain", "reason": "unsupported_parameter", "draft-length": "0"}
        assert answered(plain_vllm_server.url) > before
        assert "servers that speculate refuse" in explained(with_plain, **more)["detail"]
    before = answered(plain_vllm_server.url)
    for mode in ("plain", "speculative"):
        assert ask(with_plain, mode).headers["x-slipstream-arm"] == mode
    assert answered(plain_vllm_server.url) == before


@pytest.mark.parametrize(
    ("xargs", "param"),
    [
        ({"slipstream_draft_length": 2}, "vllm_xargs.slipstream_draft_length"),
        ({"slipstream_class": "code/long", "own": 1}, "vllm_xargs.slipstream_class"),
        ([1], "vllm_xargs"),
        ("x", "vllm_xargs"),
    ],
)
def test_the_gateways_own_arguments_are_not_the_clients(served: Gateway, xargs: Any, param: str) -> None:
    answer = ask(served, "speculative", vllm_xargs=xargs)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_completions_draft_as_chats_do(served: Gateway) -> None:
    answers = {}
    for mode, headers in (("plain", {"x-slipstream-mode": "plain"}), ("speculative", SPECULATIVE)):
        fields = {"model": body()["model"], "prompt": "The customer said", "temperature": 0, "max_tokens": 32}
        found = httpx.post(f"{served.url}/v1/completions", json=fields, headers=headers, timeout=WAIT_S)
        assert found.headers["x-slipstream-arm"] == mode
        answers[mode] = found.json()
    assert answers["plain"]["choices"] == answers["speculative"]["choices"]
    assert sum(answers["speculative"]["usage"]["completion_tokens_details"].values()) > 0


def test_the_servers_id_of_a_request_is_the_gateways(served: Gateway) -> None:
    answer = ask(served, "speculative")
    assert answer.json()["id"] == f"chatcmpl-{answer.headers['x-request-id']}"


def test_what_a_server_drafts_is_learnt_exactly(served: Gateway) -> None:
    before = served.metric("slipstream_drafted_tokens_total"), served.metric("slipstream_accepted_tokens_total")
    usage = ask(served, "speculative", length=4).json()["usage"]["completion_tokens_details"]
    accepted = usage["accepted_prediction_tokens"]
    after = served.metric("slipstream_drafted_tokens_total"), served.metric("slipstream_accepted_tokens_total")
    assert (after[0] - before[0], after[1] - before[1]) == (sum(usage.values()), accepted)
