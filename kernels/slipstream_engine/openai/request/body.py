"""Decodes bodies of chat and text completions. Errors name the field.

Fields that this engine does not support are refused, because an answer that ignores them would be wrong. Fields without
effect on an answer are accepted.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from slipstream_engine.openai.errors import Refusal

_READ_TIMEOUT_S = 60.0
_NULL = b"null"
_NO_EFFECT = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "parallel_tool_calls",
        "prediction",
        "priority",
        "request_id",
    }
)
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "logprobs": (False,),
    "top_logprobs": (0,),
    "min_tokens": (0,),
    "echo": (False,),
    "include_stop_str_in_output": (False,),
    "truncation": ("disabled",),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "best_of": (1,),
    "suffix": ("",),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "bad_words": ([],),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "add_special_tokens": (False, True),
    "chat_template_kwargs": ({},),
}
"""Fields that are not supported everywhere, with their values that leave an answer as it is."""


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False


class StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's field `structured_outputs`: one of them, and options of its JSON."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False


class _JsonSchema(msgspec.Struct, frozen=True):
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    schema: dict[str, Any] | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    type: str
    json_schema: _JsonSchema | None = None


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that chat and text completions share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    return_token_ids: bool | None = None
    vllm_xargs: dict[str, Any] | None = None


class _Part(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None


class Message(msgspec.Struct, frozen=True):
    role: str
    content: str | list[_Part] | None = None
    name: str | None = None
    tool_calls: list[Any] | None = None
    tool_call_id: str | None = None


class ChatBody(Body, frozen=True, kw_only=True):
    messages: list[Message] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class CompletionBody(Body, frozen=True, kw_only=True):
    prompt: str | list[str | int | list[int]] | None = None
    logprobs: int | None = None
    echo: bool | None = None


AnyBody = TypeVar("AnyBody", bound=Body)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_PATH = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?", re.DOTALL)


async def read_body(request: Request, most_bytes: int) -> bytes:
    """Raises `Refusal` as soon as the body is too large, or if it does not arrive in time, and `ClientDisconnect`."""
    raw = bytearray()
    try:
        async with asyncio.timeout(_READ_TIMEOUT_S):
            async for part in request.stream():
                raw += part
                if len(raw) > most_bytes:
                    raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The body exceeds {most_bytes} bytes.")
    except TimeoutError as exc:
        problem = f"The body did not arrive within {_READ_TIMEOUT_S:g} seconds."
        raise Refusal(HTTPStatus.REQUEST_TIMEOUT, problem) from exc
    return bytes(raw)


def decode(raw: bytes, kind: type[AnyBody]) -> AnyBody:
    """The body in `raw`. Raises `Refusal` with the field's path."""
    try:
        fields = _fields(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"The body is not a JSON object: {exc}.") from exc
    given = {name: value for name, value in fields.items() if not _is_neutral(name, value)}
    for name in given.keys() - set(kind.__struct_fields__) - _NO_EFFECT:
        what = f"{name:.64} is not supported by this engine."
        raise Refusal(HTTPStatus.BAD_REQUEST, what, name[:64], code="unsupported_parameter")
    try:
        return msgspec.json.decode(raw if len(given) == len(fields) else msgspec.json.encode(given), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise _bad_type(str(exc)) from exc


def _bad_type(problem: str) -> Refusal:
    found = _PATH.fullmatch(problem)
    what, path = (found["what"], found["path"]) if found is not None else (problem, None)
    if path is None:
        return Refusal(HTTPStatus.BAD_REQUEST, f"{what}.")
    return Refusal(HTTPStatus.BAD_REQUEST, f"{path}: {what}.", path)


def _is_neutral(name: str, raw: msgspec.Raw) -> bool:
    if bytes(raw) == _NULL:
        return True
    if name not in _NEUTRAL:
        return False
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return any(value == neutral and isinstance(value, bool) is isinstance(neutral, bool) for neutral in _NEUTRAL[name])
