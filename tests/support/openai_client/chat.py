"""Chat completions: what the client can ask for, and what comes back."""

from __future__ import annotations

from typing import Any

from tests.support.openai_client.features import CALL, WEATHER, Feature, Outcome, Target

AREA = "Chat completions"
STREAM = "Streamed chat"
TOOLS = "Tools"
_USER = {"role": "user", "content": CALL}
_FORECAST = {"type": "function", "function": {"name": "forecast", "description": "Weather", "parameters": WEATHER}}
_ALERT = {
    "type": "function",
    "function": {
        "name": "alert",
        "parameters": {
            "type": "object",
            "properties": {"level": {"enum": ["low", "high"]}},
            "required": ["level"],
            "additionalProperties": False,
        },
    },
}
_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
_NAMED = {"type": "function", "function": {"name": "forecast"}}
_SCHEMA = {"type": "json_schema", "json_schema": {"name": "weather", "strict": True, "schema": WEATHER}}


def _chat(target: Target, **more: Any) -> Any:
    asked = {"messages": [_USER], "temperature": 0, "max_tokens": 24, **more}
    return target.client.chat.completions.create(model=target.model, **asked)


def _of(**more: Any) -> Any:
    """A call with these parameters."""
    return lambda target: _chat(target, **more)


def _streamed(**more: Any) -> Any:
    return lambda target: list(_chat(target, stream=True, **more))


def _twice(**more: Any) -> Any:
    """Two answers that must be one."""

    def run(target: Target) -> Any:
        first, second = _chat(target, **more), _chat(target, **more)
        assert first.choices[0].message == second.choices[0].message
        return first

    return run


_POOL = {
    "vllm": Outcome.FROM_PLAIN_POOL,
    "note": "vLLM refuses it while speculation is configured. Without a `plain` pool: 400 with the parameter's name.",
}

CHAT = [
    Feature(AREA, "one answer", _of()),
    Feature(AREA, "`system` role", _of(messages=[{"role": "system", "content": "Be brief."}, _USER])),
    Feature(AREA, "`developer` role", _of(messages=[{"role": "developer", "content": "Be brief."}, _USER])),
    Feature(
        AREA,
        "several turns",
        _of(messages=[_USER, {"role": "assistant", "content": "Charged twice."}, {"role": "user", "content": "Why?"}]),
    ),
    Feature(
        AREA, "content in text parts", _of(messages=[{"role": "user", "content": [{"type": "text", "text": CALL}]}])
    ),
    Feature(
        AREA,
        "an image",
        _of(messages=[{"role": "user", "content": [_IMAGE]}]),
        vllm=Outcome.SERVER_ERROR,
        note="The tested model takes text alone: vLLM says so. A multimodal one answers.",
    ),
    Feature(AREA, "`max_tokens`", _of(max_tokens=5)),
    Feature(AREA, "`max_completion_tokens`", _of(max_tokens=None, max_completion_tokens=5)),
    Feature(AREA, "`stop`, one text", _of(stop="Agent", max_tokens=64)),
    Feature(AREA, "`stop`, several texts", _of(stop=["?", "!", "Emil"], max_tokens=64)),
    Feature(
        AREA,
        "`stop_token_ids`, `include_stop_str_in_output`",
        _of(stop=["a"], extra_body={"include_stop_str_in_output": True, "stop_token_ids": [5]}),
    ),
    Feature(AREA, "`temperature` with `seed`, twice", _twice(temperature=0.8, seed=7)),
    Feature(AREA, "`top_p`, `top_k` with `seed`", _of(temperature=1.0, seed=3, top_p=0.7, extra_body={"top_k": 20})),
    Feature(
        AREA,
        "`n`",
        _of(n=2, temperature=0.9, seed=11),
        note="Drafts are not counted in the usage: vLLM counts one sequence.",
    ),
    Feature(AREA, "`logprobs`, `top_logprobs`", _of(logprobs=True, top_logprobs=3)),
    Feature(AREA, "`prompt_logprobs`", _of(extra_body={"prompt_logprobs": 1})),
    Feature(AREA, "`presence_penalty`, `frequency_penalty`", _of(presence_penalty=1.5, frequency_penalty=0.5)),
    Feature(AREA, "`repetition_penalty`", _of(extra_body={"repetition_penalty": 1.3})),
    Feature(AREA, "`min_tokens`, `ignore_eos`", _of(extra_body={"min_tokens": 24, "ignore_eos": True})),
    Feature(AREA, "`bad_words`", _of(extra_body={"bad_words": ["Call"]})),
    Feature(AREA, "`logit_bias`", _of(logit_bias={"100": 5}), param="logit_bias", **_POOL),
    Feature(AREA, "`min_p`", _of(temperature=0.8, seed=7, extra_body={"min_p": 0.2}), param="min_p", **_POOL),
    Feature(AREA, "`response_format`: `json_object`", _of(response_format={"type": "json_object"})),
    Feature(AREA, "`response_format`: `json_schema`", _of(response_format=_SCHEMA, max_tokens=64)),
    Feature(
        AREA, "`structured_outputs`: choice", _of(extra_body={"structured_outputs": {"choice": ["refund", "repair"]}})
    ),
    Feature(
        AREA, "`structured_outputs`: regex", _of(extra_body={"structured_outputs": {"regex": "[a-c]{3}-[0-9]{2}"}})
    ),
    Feature(
        AREA,
        "`continue_final_message`",
        _of(
            messages=[_USER, {"role": "assistant", "content": "The customer"}],
            extra_body={"continue_final_message": True, "add_generation_prompt": False},
        ),
    ),
    Feature(AREA, "`return_token_ids`", _of(extra_body={"return_token_ids": True})),
    Feature(AREA, "`user`, `metadata`, `store`", _of(user="u-1", metadata={"a": "b"}, store=False)),
    Feature(STREAM, "pieces of one answer", _streamed()),
    Feature(STREAM, "`stream_options.include_usage`", _streamed(stream_options={"include_usage": True})),
    Feature(STREAM, "`n`", _streamed(n=2, temperature=0.9, seed=11)),
    Feature(STREAM, "`logprobs`, `top_logprobs`", _streamed(logprobs=True, top_logprobs=2)),
    Feature(STREAM, "`json_schema`", _streamed(response_format=_SCHEMA, max_tokens=64)),
    Feature(TOOLS, "`tool_choice`: one by name", _of(tools=[_FORECAST, _ALERT], tool_choice=_NAMED, max_tokens=64)),
    Feature(TOOLS, "`tool_choice: required`", _of(tools=[_FORECAST, _ALERT], tool_choice="required", max_tokens=96)),
    Feature(TOOLS, "`tool_choice: auto`", _of(tools=[_FORECAST])),
    Feature(TOOLS, "`tool_choice: none`", _of(tools=[_FORECAST], tool_choice="none")),
    Feature(
        TOOLS,
        "`parallel_tool_calls: false`",
        _of(tools=[_FORECAST, _ALERT], tool_choice="required", parallel_tool_calls=False, max_tokens=96),
    ),
    Feature(TOOLS, "streamed, by name", _streamed(tools=[_FORECAST, _ALERT], tool_choice=_NAMED, max_tokens=64)),
    Feature(TOOLS, "streamed, `required`", _streamed(tools=[_FORECAST, _ALERT], tool_choice="required", max_tokens=96)),
    Feature(
        TOOLS,
        "calls and results of earlier turns",
        _of(
            messages=[
                _USER,
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "c1",
                            "type": "function",
                            "function": {"name": "forecast", "arguments": '{"city": "Oslo"}'},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "rain"},
            ],
            tools=[_FORECAST],
            tool_choice="none",
        ),
        vllm=Outcome.SERVER_ERROR,
        note="The tested pair's chat template has no tools: vLLM says so. Other templates take them.",
    ),
]
