"""Text completions, responses, models, errors, and what the client itself does."""

from __future__ import annotations

from typing import Any

from tests.support.openai_client.features import CALL, WEATHER, Feature, Outcome, Target

TEXT, RESPONSES, MODELS, ERRORS = "Text completions", "Responses", "Models", "Errors and transport"
_TOKEN_IDS = [101, 57, 30, 412, 9]
_TOOL = {"type": "function", "name": "forecast", "parameters": WEATHER, "strict": True}
_FORMAT = {"format": {"type": "json_schema", "name": "weather", "strict": True, "schema": WEATHER}}


def _text(**more: Any) -> Any:
    asked = {"prompt": CALL, "temperature": 0, "max_tokens": 24, **more}
    return lambda target: target.client.completions.create(model=target.model, **asked)


def _text_stream(**more: Any) -> Any:
    return lambda target: list(_text(stream=True, **more)(target))


def _response(**more: Any) -> Any:
    asked = {"input": CALL, "temperature": 0, "max_output_tokens": 24, **more}
    return lambda target: target.client.responses.create(model=target.model, **asked)


def _response_stream(**more: Any) -> Any:
    return lambda target: list(_response(stream=True, **more)(target))


def _chat(**more: Any) -> Any:
    asked = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 4, **more}
    return lambda target: target.client.chat.completions.create(**{"model": target.model, **asked})


def _raw(target: Target) -> Any:
    raw = target.client.chat.completions.with_raw_response.create(
        model=target.model, messages=[{"role": "user", "content": "hi"}], temperature=0, max_tokens=4
    )
    return raw.status_code, raw.headers["content-type"], raw.parse()


def _late(target: Target) -> Any:
    return _chat(max_tokens=400, extra_body={"ignore_eos": True}, timeout=0.05)(target)


_CONVERSATION = [
    {"role": "user", "content": CALL},
    {
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Charged twice.", "annotations": []}],
        "id": "m1",
        "type": "message",
        "status": "completed",
    },
    {"role": "user", "content": [{"type": "input_text", "text": "Why?"}]},
]

OTHERS = [
    Feature(TEXT, "one text", _text()),
    Feature(TEXT, "streamed, with usage", _text_stream(stream_options={"include_usage": True})),
    Feature(TEXT, "`echo`", _text(echo=True)),
    Feature(TEXT, "`logprobs`", _text(logprobs=2)),
    Feature(TEXT, "`echo` with `logprobs`", _text(echo=True, logprobs=1, max_tokens=2), own_refusal="echo"),
    Feature(TEXT, "a prompt of token ids", _text(prompt=_TOKEN_IDS)),
    Feature(TEXT, "several prompts", _text(prompt=[CALL, "Agent: Hello"])),
    Feature(TEXT, "several prompts of token ids", _text(prompt=[_TOKEN_IDS, _TOKEN_IDS[1:]])),
    Feature(TEXT, "`n` with `seed`", _text(n=2, temperature=0.9, seed=4)),
    Feature(TEXT, "`stop`", _text(stop=["."], max_tokens=64)),
    Feature(TEXT, "`suffix`", _text(suffix="end"), vllm=Outcome.SERVER_ERROR, note="vLLM has no `suffix`."),
    Feature(TEXT, "`best_of`", _text(best_of=2), note="vLLM ignores it."),
    Feature(RESPONSES, "one response", _response()),
    Feature(RESPONSES, "`instructions`", _response(instructions="Be brief.")),
    Feature(RESPONSES, "several turns in `input`", _response(input=_CONVERSATION)),
    Feature(RESPONSES, "streamed events", _response_stream()),
    Feature(RESPONSES, "`text.format`: `json_schema`", _response(text=_FORMAT, max_output_tokens=64)),
    Feature(RESPONSES, "streamed `json_schema`", _response_stream(text=_FORMAT, max_output_tokens=64)),
    Feature(
        RESPONSES,
        "tool by name",
        _response(tools=[_TOOL], tool_choice={"type": "function", "name": "forecast"}, max_output_tokens=64),
    ),
    Feature(
        RESPONSES,
        "tool, `required`, streamed",
        _response_stream(tools=[_TOOL], tool_choice="required", max_output_tokens=96),
    ),
    Feature(
        RESPONSES, "`include`: log-probabilities", _response(include=["message.output_text.logprobs"], top_logprobs=2)
    ),
    Feature(
        RESPONSES, "`temperature`, `top_p` with `seed`", _response(temperature=0.8, top_p=0.9, extra_body={"seed": 5})
    ),
    Feature(
        RESPONSES,
        "`metadata`, `user`, `store`",
        _response(metadata={"a": "b"}, user="u-1", store=True),
        note="vLLM stores nothing by default.",
    ),
    Feature(
        RESPONSES,
        "`min_p`",
        _response(temperature=0.8, extra_body={"min_p": 0.2, "seed": 5}),
        vllm=Outcome.FROM_PLAIN_POOL,
        param="min_p",
        note="As in chat.",
    ),
    Feature(
        RESPONSES,
        "`previous_response_id`",
        _response(previous_response_id="resp_1"),
        vllm=Outcome.OWN_ERROR,
        param="previous_response_id",
        note="A model of one server: passed on. Several servers: refused, as each keeps only its own responses.",
    ),
    Feature(
        RESPONSES,
        "`background`",
        _response(background=True),
        vllm=Outcome.OWN_ERROR,
        param="background",
        note="The gateway stores no responses to fetch later.",
    ),
    Feature(
        RESPONSES,
        "retrieve, cancel, delete",
        lambda target: target.client.responses.retrieve("resp_1"),
        vllm=Outcome.OWN_ERROR,
        note="404, as from a server that keeps none.",
    ),
    Feature(
        MODELS,
        "list",
        lambda target: [one.object for one in target.client.models.list()],
        vllm=Outcome.OWN_ANSWER,
        note="The models of the manifest.",
    ),
    Feature(
        MODELS,
        "retrieve",
        lambda target: target.client.models.retrieve(target.model).object,
        vllm=Outcome.OWN_ANSWER,
        note="vLLM has no such path.",
    ),
    Feature(
        ERRORS,
        "unknown model",
        _chat(model="nobody"),
        vllm=Outcome.OWN_ERROR,
        param="model",
        note="404 in both; the code is OpenAI's, `model_not_found`.",
    ),
    Feature(
        ERRORS,
        "LoRA adapter by name",
        _chat(model="adapter"),
        vllm=Outcome.OWN_ERROR,
        param="model",
        note="A pair's `adapters` are the models `MODEL:NAME`; the gateway knows no others.",
    ),
    Feature(
        ERRORS,
        "parameter out of bounds",
        _chat(temperature=-7),
        vllm=Outcome.OWN_ERROR,
        param="temperature",
        note="400 in both; the gateway checks what it reads.",
    ),
    Feature(
        ERRORS,
        "parameter that only the server checks",
        _chat(logprobs=True, top_logprobs=1000),
        vllm=Outcome.SERVER_ERROR,
    ),
    Feature(
        ERRORS,
        "prompt beyond the context",
        _chat(messages=[{"role": "user", "content": "word " * 4000}]),
        vllm=Outcome.SERVER_ERROR,
    ),
    Feature(ERRORS, "the client's timeout", _late, note="The request is cancelled in the server."),
    Feature(ERRORS, "raw response", _raw, note="The gateway adds `x-request-id` and `x-slipstream-…`."),
]
