"""Requests that no server of a model answers: bounds of the pair, unsupported and unknown parameters."""

from __future__ import annotations

import json
from typing import Any, get_type_hints

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params
from slipstream_core.errors import InvalidRequest, UnsupportedParameter
from slipstream_core.manifest.dialects import DIALECTS
from slipstream_core.parameter_names import KNOWN_PARAMETERS, suggestion
from slipstream_core.types import GenerationRequest
from slipstream_gateway.api.body import CORE_FIELDS, RESPONSES_FIELDS
from slipstream_gateway.api.features import NO_EFFECT
from slipstream_gateway.api.parse import parse_chat_request, parse_completion_request
from slipstream_gateway.decide.route import NO_DRAWS, DecisionInputs, Health, decide

from tests.gateway.routing.cases import profile, route

OPENAI = {"plain": {"protocol": "openai", "endpoints": ["http://a:1"], "model": "m"}}
TRITON = {"plain": {"protocol": "triton", "endpoints": ["grpc://a:1"], "model": "m"}}
MIXED = {**OPENAI, "speculative": TRITON["plain"]}


def completion(**fields: Any) -> GenerationRequest:
    return parse_completion_request(json.dumps({"model": "m", "prompt": "x", **fields}).encode())


def chat(**fields: Any) -> GenerationRequest:
    messages = [{"role": "user", "content": "hi"}]
    return parse_chat_request(json.dumps({"model": "m", "messages": messages, **fields}).encode())


def check(request: GenerationRequest, arms: dict[str, Any], **pair: Any) -> None:
    """Raises the refusal, if any."""
    inputs = DecisionInputs(
        request, profile(), route(arms=arms, pair=pair), forecast=None, draws=NO_DRAWS, health=Health()
    )
    decide(inputs)


BOUNDS = {"maxChoices": 32, "maxStopStrings": 64, "maxStopBytes": 1024, "maxTemperature": 100}
BEYOND = [
    (chat(n=33), "n", "integer_above_max_value", "at most 32, got 33"),
    (completion(prompt=["x"] * 33), "prompt", "array_above_max_length", "at most 32 prompts, got 33"),
    (completion(prompt=["x"] * 5, n=7), "n", "integer_above_max_value", "32 choices over all prompts, got 5 × 7"),
    (chat(temperature=100.5), "temperature", "decimal_above_max_value", "at most 100, got 100.5"),
    (chat(stop=["x"] * 65), "stop", "array_above_max_length", "at most 64 strings, got 65"),
    (chat(stop="é" * 513), "stop", "string_above_max_length", "at most 1024 bytes, got 1026"),
    (chat(stop=["a", "b" * 1025]), "stop[1]", "string_above_max_length", "at most 1024 bytes, got 1025"),
]


@pytest.mark.parametrize(("request_", "param", "code", "part"), BEYOND)
@pytest.mark.parametrize("arms", [OPENAI, TRITON, MIXED])
def test_a_value_beyond_a_bound_is_an_error_that_names_it(
    arms: dict[str, Any], request_: GenerationRequest, param: str, code: str, part: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check(request_, arms, requestBounds=BOUNDS)
    assert (refused.value.param, refused.value.code) == (param, code)
    assert part in str(refused.value)


@pytest.mark.parametrize(
    "request_",
    [
        *(case[0] for case in BEYOND),
        completion(prompt=["x"] * 16),
        completion(prompt=["x"] * 4096, n=64),
        chat(n=128),
        chat(temperature=1e9),
    ],
)
@pytest.mark.parametrize("arms", [OPENAI, TRITON, MIXED])
def test_without_bounds_nothing_is_refused_before_the_servers_see_it(
    arms: dict[str, Any], request_: GenerationRequest
) -> None:
    check(request_, arms)


def test_of_openai_servers_candidates_are_not_refused_before_they_see_them() -> None:
    check(completion(best_of=20), OPENAI)


@pytest.mark.parametrize(
    ("bounds", "good", "bad", "param"),
    [
        ({"maxPrompts": 16}, completion(prompt=["x"] * 16), completion(prompt=["x"] * 17), "prompt"),
        ({"maxChoices": 3}, chat(n=3), chat(n=4), "n"),
        ({"maxChoices": 3}, completion(best_of=3), completion(best_of=4), "best_of"),
        (
            {"maxChoices": 6},
            completion(best_of=3, prompt=["x"] * 2),
            completion(best_of=3, prompt=["x"] * 3),
            "best_of",
        ),
        ({"maxStopStrings": 2}, chat(stop=["a"] * 2), chat(stop=["a"] * 3), "stop"),
        ({"maxStopBytes": 3}, chat(stop="aaa"), chat(stop="aaaa"), "stop"),
        ({"maxTemperature": 1.5}, chat(temperature=1.5), chat(temperature=1.6), "temperature"),
    ],
)
def test_a_pair_sets_its_own_bounds(
    bounds: dict[str, Any], good: GenerationRequest, bad: GenerationRequest, param: str
) -> None:
    check(good, OPENAI, requestBounds=bounds)
    with pytest.raises(InvalidRequest, match="expected at most") as refused:
        check(bad, OPENAI, requestBounds=bounds)
    assert refused.value.param == param


def test_a_pairs_bound_sets_no_other() -> None:
    check(chat(n=40, temperature=101, stop=["x"] * 65), TRITON, requestBounds={"maxChoices": 40})


@pytest.mark.parametrize(
    ("request_", "param", "code", "message"),
    [
        (
            chat(temprature=1),
            "temprature",
            "unknown_parameter",
            "Unknown parameter: 'temprature'. Did you mean 'temperature'?",
        ),
        (
            chat(maxTokens=1),
            "maxTokens",
            "unknown_parameter",
            "Unknown parameter: 'maxTokens'. Did you mean 'max_tokens'?",
        ),
        (chat(unheard_of=1), "unheard_of", "unknown_parameter", "Unknown parameter: 'unheard_of'."),
        (
            chat(stream=True, stream_options={"include_usge": True}),
            "stream_options.include_usge",
            "unknown_parameter",
            "Unknown parameter: 'stream_options.include_usge'. Did you mean 'include_usage'?",
        ),
        (
            chat(prompt_logprobs=1),
            "prompt_logprobs",
            "unsupported_parameter",
            "The parameter 'prompt_logprobs' is not supported by the model 'm'.",
        ),
        (completion(max_tokens=0), "max_tokens", "unsupported_value", "Invalid 'max_tokens': 0 is not supported"),
        (
            chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
            "image_url",
            "unsupported_parameter",
            "The parameter 'image_url' is not supported",
        ),
    ],
)
def test_unsupported_and_unknown_parameters_are_told_apart(
    request_: GenerationRequest, param: str, code: str, message: str
) -> None:
    with pytest.raises(UnsupportedParameter) as refused:
        check(request_, TRITON)
    assert (refused.value.param, refused.value.code) == (param, code)
    assert message in str(refused.value)
    if param != "image_url":
        check(request_, OPENAI)


def test_every_parameter_of_openai_and_of_the_gateway_is_known() -> None:
    kinds = (
        chat_create_params.CompletionCreateParamsBase,
        completion_create_params.CompletionCreateParamsBase,
        response_create_params.ResponseCreateParamsBase,
    )
    openais = {name for kind in kinds for name in get_type_hints(kind)}
    of_dialects = {name for dialect in DIALECTS.values() for name in dialect.unsupported | dialect.inexact}
    assert openais | CORE_FIELDS | RESPONSES_FIELDS | NO_EFFECT | of_dialects <= KNOWN_PARAMETERS


@pytest.mark.parametrize(("name", "found"), [("x", ""), ("a" * 100_000, ""), ("top-p", "top_p"), ("stops", "stop")])
def test_only_similar_names_are_suggested(name: str, found: str) -> None:
    assert suggestion(name) == (f"Did you mean '{found}'?" if found else "")
