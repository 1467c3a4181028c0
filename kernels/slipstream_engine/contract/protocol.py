"""The protocol between Triton's half of the backend and an engine.

This module imports no engine and nothing heavier than msgspec, which vLLM's environment also has.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

import msgspec

from slipstream_engine.contract.types import Chunk, GenerationRequest

MOST_STANDINGS = 256
OnChunk = Callable[[Chunk], None]


class PromptTokenizer(Protocol):
    """Converts prompts to the target's token ids. Both methods raise `RequestError` if that is not possible."""

    def encode(self, text: str) -> tuple[int, ...]: ...

    def render_chat(self, messages: list[dict[str, str]]) -> tuple[int, ...]: ...


class DraftStanding(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine knows of one of its drafts for the requests of a group.

    `state` is "promoted", "undecided" or "taken_back". `answers` is the number of answers with this draft. Old
    answers fade. `seconds_per_token` is the engine time, None before the first answer.
    """

    group: str
    draft: str
    state: str
    answers: int
    seconds_per_token: float | None


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Name and capabilities of an engine: the answer to the control message `engine_facts`.

    `version` is the engine's own version, empty if the engine is part of Slipstream. `max_draft_length` is 0 without
    speculation. `openai`: the engine answers whole OpenAI requests (`openai_request`). `resumes_sampled`: a sampled
    answer continues after `resume_ids` as it would have without the interruption. Greedy answers always do. `adaptive`:
    the engine can choose how many draft tokens of a request it verifies in each step. `fingerprint` identifies all that
    determines an answer besides the request and its seed: engines with one fingerprint give equal answers at every
    draft length, up to rounding in half precision. Empty if the engine does not promise that. `prompt_ids`: the model
    has the input of that name; older ones do not. `groups`: it has the input `group`, and learns for
    each group. `drafts` are the names of its drafts if it has several; it then has the output `draft`.
    `draft_standings`: what it knows of them, at most `MOST_STANDINGS`.
    """

    engine: str
    version: str = ""
    max_draft_length: int
    context_tokens: int
    openai: bool
    resumes_sampled: bool
    adaptive: bool = False
    fingerprint: str = ""
    prompt_ids: bool = True
    groups: bool = False
    drafts: tuple[str, ...] = ()
    draft_standings: tuple[DraftStanding, ...] = ()


class ServedEngine(Protocol):
    """An engine with its own threads. All methods except `close` return at once and are thread-safe."""

    @property
    def tokenizer(self) -> PromptTokenizer: ...

    @property
    def context_tokens(self) -> int:
        """Maximum number of prompt and output tokens of a request."""
        ...

    @property
    def stops(self) -> int:
        """Number of calls of `stop_drafting`."""
        ...

    def facts(self) -> EngineFacts:
        """The engine's facts. Raises `EngineFailedError` if the engine has ended."""
        ...

    def submit(self, request: GenerationRequest, on_chunk: OnChunk, *, stops: int | None = None) -> None:
        """Queue a request. `on_chunk`, which must not block, receives its chunks until one has a finish reason.

        `stops` is the property's value when the request arrived. If `stop_drafting` was called since then, the request
        decodes plainly.

        Raises:
            RequestError: the request can never be served.
            OverloadedError: the queue is full.
            EngineFailedError: the engine has ended.
        """
        ...

    def cancel(self, request_id: str) -> None:
        """End a request soon. Unknown ids are ignored, because the request may have just ended."""
        ...

    def stop_drafting(self) -> object:
        """Turn drafting off for all submitted requests from their next step on."""
        ...

    def close(self) -> None:
        """End running requests as cancelled, then end all threads."""
        ...


class OpenAiEndpoint(StrEnum):
    """OpenAI endpoint of a request."""

    CHAT = "chat"
    COMPLETION = "completion"
    RESPONSES = "responses"


class OpenAiRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Content of the tensor `openai_request`: the JSON `body` that a client sends to `endpoint`."""

    endpoint: OpenAiEndpoint
    body: msgspec.Raw


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """Part of the answer to an `OpenAiRequest`: a JSON body or complete server-sent events, with the HTTP status of the
    whole answer. `last` is False if more parts follow."""

    status: int
    data: bytes
    last: bool


OnReply = Callable[[Reply], None]


class OpenAiEngine(ServedEngine, Protocol):
    """An engine that also answers OpenAI requests."""

    def ask(self, request_id: str, request: OpenAiRequest, on_reply: OnReply, *, stops: int | None = None) -> None:
        """Answer `request`. `on_reply`, which must not block, receives the replies. `cancel` ends the request. `stops`
        is as in `submit`.

        Raises:
            OverloadedError: the queue is full.
            EngineFailedError: the engine has ended.
        """
        ...
