"""Checks a Triton request's input tensors and converts them to an engine request.

Triton has already checked names, data types and ranks against `config.pbtxt`; everything else is checked here. Each
error is a `RequestError` with the tensor and the value. This module does not depend on Triton: tensors are numpy arrays
by name, as in the Python backend (strings as `bytes` objects).
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from slipstream_engine.contract.protocol import OpenAiRequest, PromptTokenizer
from slipstream_engine.contract.types import GenerationRequest, SamplingParams
from slipstream_engine.errors import RequestError

Tensors = Mapping[str, np.ndarray[Any, Any]]

PROMPT_TENSORS = ("text_input", "messages", "input_ids")
INPUT_TENSORS = (
    *PROMPT_TENSORS,
    "resume_ids",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "stop",
    "draft_tokens",
    "adaptive",
    "stream",
    "margins",
    "prompt_ids",
    "group",
)
STOP_DRAFTING = "stop_drafting"
ENGINE_FACTS = "engine_facts"
OPENAI_REQUEST = "openai_request"
MESSAGE_TENSORS = (STOP_DRAFTING, ENGINE_FACTS, OPENAI_REQUEST)
"""A request with one of these tensors has no other input."""
ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_STOP_STRINGS = 64
MAX_STOP_BYTES = 1024
MAX_TEMPERATURE = 100.0
MAX_GROUP_BYTES = 128


class TritonRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request. With `stream` False there is a single response, at the end. With `prompt_ids` the first
    response has the token ids of the prompt."""

    generation: GenerationRequest
    stream: bool
    prompt_ids: bool


class _Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    role: str
    content: str


def parse_request(
    tensors: Tensors, *, request_id: str, tokenizer: PromptTokenizer, context_tokens: int
) -> TritonRequest:
    """Check `tensors` and build the engine's request from them.

    Args:
        tensors: the client's inputs, by name.
        request_id: an id that is unique in the engine, unlike the client's own id.
        tokenizer: the target's tokenizer.
        context_tokens: maximum number of prompt and output tokens; `max_tokens` defaults to the rest of it.

    Raises:
        RequestError: a tensor's value cannot be served.
    """
    prompt_ids = _prompt_ids(tensors, tokenizer)
    resume_ids = _token_ids(tensors, "resume_ids")
    max_tokens = _integer(tensors, "max_tokens", default=None, minimum=1)
    generation = GenerationRequest(
        request_id=request_id,
        prompt_ids=prompt_ids,
        resume_ids=resume_ids,
        max_tokens=max(1, context_tokens - len(prompt_ids)) if max_tokens is None else max_tokens,
        sampling=_sampling(tensors),
        stop=_stop_strings(tensors),
        draft_tokens=_integer(tensors, "draft_tokens", default=0, minimum=0) or 0,
        adaptive=_flag(tensors, "adaptive"),
        margins=_flag(tensors, "margins"),
        group=_group(tensors),
    )
    return TritonRequest(
        generation=generation, stream=_flag(tensors, "stream"), prompt_ids=_flag(tensors, "prompt_ids")
    )


def message_kind(tensors: Tensors) -> str | None:
    """The request's tensor among `MESSAGE_TENSORS`, or None for a generation request.

    Raises:
        RequestError: there is another input, or the value of a control message is not true.
    """
    kind = next((name for name in MESSAGE_TENSORS if name in tensors), None)
    if kind is None:
        return None
    others = sorted(set(tensors) - {kind})
    if others:
        name = "request" if kind == OPENAI_REQUEST else "control message"
        raise RequestError(f"{kind} is a {name} and allows no other input, got {others[0]}")
    if kind != OPENAI_REQUEST and not _flag(tensors, kind):
        raise RequestError(f"{kind}: expected true, got false")
    return kind


def parse_openai_request(tensors: Tensors) -> OpenAiRequest:
    """The OpenAI request in the tensor `openai_request`. The engine checks its body.

    Raises:
        RequestError: the tensor is not valid JSON of the expected form.
    """
    try:
        return msgspec.json.decode(tensors[OPENAI_REQUEST].tobytes(), type=OpenAiRequest)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise RequestError(f'{OPENAI_REQUEST} is not JSON of the form {{"endpoint": …, "body": {{…}}}}: {exc}') from exc


def prompt_bytes(tensors: Tensors) -> int:
    """Number of bytes to tokenize, which distinguishes slow requests from fast ones."""
    return sum(len(item) for name in ("text_input", "messages") if name in tensors for item in tensors[name].flat)


def _prompt_ids(tensors: Tensors, tokenizer: PromptTokenizer) -> tuple[int, ...]:
    given = [name for name in PROMPT_TENSORS if name in tensors]
    if len(given) != 1:
        found = ", ".join(given) or "none"
        raise RequestError(f"expected exactly one of {', '.join(PROMPT_TENSORS)}, got {found}")
    if given == ["input_ids"]:
        prompt_ids = _token_ids(tensors, "input_ids")
    elif given == ["messages"]:
        prompt_ids = tokenizer.render_chat(_messages(tensors))
    else:
        prompt_ids = tokenizer.encode(_text(tensors, "text_input"))
    if not prompt_ids:
        raise RequestError(f"{given[0]} holds no tokens")
    return prompt_ids


def _messages(tensors: Tensors) -> list[dict[str, str]]:
    text = _text(tensors, "messages")
    try:
        messages = msgspec.convert(json.loads(text), type=list[_Message])
    except (ValueError, RecursionError, msgspec.ValidationError) as exc:
        raise RequestError(
            f'messages is not a JSON list of {{"role": …, "content": …}} with text in both: {exc}'
        ) from exc
    if not messages:
        raise RequestError("messages is an empty list")
    for index, message in enumerate(messages):
        if message.role not in ROLES:
            raise RequestError(
                f"messages[{index}].role: expected one of {', '.join(ROLES)}, got {_short(message.role)}"
            )
        _check_encodable(message.content, f"messages[{index}].content")
    return [{"role": message.role, "content": message.content} for message in messages]


def _sampling(tensors: Tensors) -> SamplingParams:
    temperature = _number(tensors, "temperature", default=1.0)
    if not 0.0 <= temperature <= MAX_TEMPERATURE:
        raise RequestError(f"temperature: expected 0 to {MAX_TEMPERATURE:g}, got {temperature:g}")
    top_p = _number(tensors, "top_p", default=1.0)
    if not 0.0 < top_p <= 1.0:
        raise RequestError(f"top_p: expected more than 0 and at most 1, got {top_p:g}")
    top_k = _integer(tensors, "top_k", default=0, minimum=0) or 0
    seed = _integer(tensors, "seed", default=None)
    return SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=secrets.randbits(63) if seed is None else seed,
    )


def _stop_strings(tensors: Tensors) -> tuple[str, ...]:
    if "stop" not in tensors:
        return ()
    raw = list(tensors["stop"].flat)
    if len(raw) > MAX_STOP_STRINGS:
        raise RequestError(f"stop: at most {MAX_STOP_STRINGS} strings, got {len(raw)}")
    for index, item in enumerate(raw):
        if not 0 < len(item) <= MAX_STOP_BYTES:
            raise RequestError(f"stop[{index}]: expected 1 to {MAX_STOP_BYTES} bytes, got {len(item)}")
    return tuple(_decode(item, f"stop[{index}]") for index, item in enumerate(raw))


def _token_ids(tensors: Tensors, name: str) -> tuple[int, ...]:
    if name not in tensors:
        return ()
    ids = tensors[name].reshape(-1)
    if ids.size and int(ids.min()) < 0:
        index = int(np.argmax(ids < 0))
        raise RequestError(f"{name}[{index}]: a token id cannot be negative, got {int(ids[index])}")
    return tuple(ids.tolist())


def _group(tensors: Tensors) -> str:
    if "group" not in tensors:
        return ""
    raw = _scalar(tensors, "group")
    if len(raw) > MAX_GROUP_BYTES:
        raise RequestError(f"group: at most {MAX_GROUP_BYTES} bytes, got {len(raw)}")
    return _decode(raw, "group")


def _text(tensors: Tensors, name: str) -> str:
    return _decode(_scalar(tensors, name), name)


def _decode(raw: bytes, name: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise RequestError(f"{name} is not valid UTF-8: {exc.reason} at byte {exc.start}") from exc


def _check_encodable(text: str, name: str) -> None:
    """Raise RequestError for a lone surrogate, which JSON escapes allow and which has no UTF-8 encoding."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as exc:
        raise RequestError(f"{name} has a lone surrogate at character {exc.start}") from exc


def _number(tensors: Tensors, name: str, *, default: float) -> float:
    if name not in tensors:
        return default
    value = float(_scalar(tensors, name))
    if not math.isfinite(value):
        raise RequestError(f"{name}: expected a finite number, got {value}")
    return value


def _flag(tensors: Tensors, name: str) -> bool:
    return name in tensors and bool(_scalar(tensors, name))


def _integer(tensors: Tensors, name: str, *, default: int | None, minimum: int | None = None) -> int | None:
    if name not in tensors:
        return default
    value = int(_scalar(tensors, name))
    if minimum is not None and value < minimum:
        raise RequestError(f"{name}: expected {minimum} or more, got {value}")
    return value


def _scalar(tensors: Tensors, name: str) -> Any:
    tensor = tensors[name]
    if tensor.size != 1:
        raise RequestError(f"{name}: expected one value, got shape {list(tensor.shape)}")
    return tensor.reshape(-1)[0]


def _short(text: str, limit: int = 40) -> str:
    return repr(text if len(text) <= limit else text[:limit] + "…")
