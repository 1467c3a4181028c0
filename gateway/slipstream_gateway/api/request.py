"""The part of a generation request that all endpoints share, and where its body is parsed.

Small bodies are parsed on the event loop and larger ones in a thread, so that other requests are not delayed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Protocol

import msgspec
from slipstream_core.errors import InvalidRequest
from slipstream_core.types import Endpoint, GenerationRequest, Message

from slipstream_gateway.api.body import WireSampling
from slipstream_gateway.api.features import FOR_SAMPLING, between, is_structured, seed_of, stop_strings, top_k_of
from slipstream_gateway.api.overrides import NO_OVERRIDES, RequestOverrides, draft_length_of, learn_of, mode_of
from slipstream_gateway.api.prompts import NonText, prompt_size

ON_LOOP_BYTES = 32 * 1024


class Parse(Protocol):
    """Parses a body into a request. Raises `InvalidRequest` or `UnsupportedParameter`."""

    def __call__(self, raw: bytes, overrides: RequestOverrides = NO_OVERRIDES) -> GenerationRequest: ...


def generation_request(
    body: WireSampling,
    endpoint: Endpoint,
    overrides: RequestOverrides,
    fields: Mapping[str, msgspec.Raw],
    *,
    features: frozenset[str],
    max_tokens: int | None,
    messages: tuple[Message, ...] = (),
    prompt: str | tuple[int, ...] | None = None,
    n: int = 1,
    choices: int = 1,
    non_text: NonText,
    include_usage: bool = False,
) -> GenerationRequest:
    """The request in `body` and `overrides`. `fields` is the body by name, `non_text` its parts other than text. Raises
    `InvalidRequest`."""
    if not body.model:
        raise InvalidRequest("Missing required parameter: 'model'.", param="model")
    raw = msgspec.json.encode(fields)  # for a repeated field, the forwarded body has the value that was validated
    temperature = between("temperature", body.temperature, 1.0, 0.0, 2.0)
    return GenerationRequest(
        endpoint=endpoint,
        model=body.model,
        messages=messages,
        prompt=prompt,
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=between("top_p", body.top_p, 1.0, 0.0, 1.0),
        top_k=top_k_of(body.top_k),
        seed=seed_of(body.seed),
        stop=stop_strings(body.stop),
        n=n,
        choices=choices,
        prompt_size=prompt_size(raw, non_text),
        stream=body.stream or False,
        include_usage=include_usage,
        structured_output=is_structured(features),
        features=features if temperature > 0.0 else features - FOR_SAMPLING,
        mode=mode_of(overrides.mode),
        draft_length=draft_length_of(overrides.draft_length),
        learn=learn_of(overrides.learn),
        raw=raw,
    )


ROLES = ("system", "developer", "user", "assistant", "tool", "function")


class BodyParser:
    """Calls `parse`, in a thread of `threads` for bodies of more than `ON_LOOP_BYTES`. Raises the errors of `parse`."""

    def __init__(self, parse: Parse, threads: Executor) -> None:
        self._parse = parse
        self._threads = threads

    async def __call__(self, raw: bytes, overrides: RequestOverrides) -> GenerationRequest:
        if len(raw) <= ON_LOOP_BYTES:
            return self._parse(raw, overrides)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._parse, raw, overrides)
