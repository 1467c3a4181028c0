"""What Triton's half of the backend needs of an engine: the contract that every engine behind the tensors keeps.

Imports no engine, and nothing heavier than msgspec: vLLM's own environment has that, too.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

import msgspec

from slipstream_engine.types import Chunk, GenerationRequest

OnChunk = Callable[[Chunk], None]


class PromptTokenizer(Protocol):
    """How prompts become the target's token ids. Both raise `RequestError` where that is not possible."""

    def encode(self, text: str) -> tuple[int, ...]: ...

    def render_chat(self, messages: list[dict[str, str]]) -> tuple[int, ...]: ...


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine is and can do, as the control message `engine_facts` tells it.

    `version` is the engine's own, empty where it is part of Slipstream. `max_draft_length` is 0 where nothing is
    speculative. `openai`: whether whole OpenAI requests are answered (`openai_request`). `resumes_sampled`: whether a
    sampled answer goes on after `resume_ids` as it would have gone on undisturbed; greedy ones always do.
    """

    engine: str
    version: str = ""
    max_draft_length: int
    context_tokens: int
    openai: bool
    resumes_sampled: bool


class ServedEngine(Protocol):
    """An engine with threads of its own. All methods but `close` return at once and may be called from any thread."""

    @property
    def tokenizer(self) -> PromptTokenizer: ...

    @property
    def context_tokens(self) -> int:
        """Positions that a request's prompt and output share."""
        ...

    @property
    def stops(self) -> int:
        """How often `stop_drafting` was called."""
        ...

    def facts(self) -> EngineFacts:
        """Raises `EngineFailedError` where the engine has ended."""
        ...

    def submit(self, request: GenerationRequest, on_chunk: OnChunk, *, stops: int | None = None) -> None:
        """Queue a request; its chunks go to `on_chunk`, which must not block, until one has a finish reason.

        `stops` is what the property was when the request came in: one that was overtaken by `stop_drafting` on its
        way here decodes plainly.

        Raises:
            RequestError: the request can never be served.
            OverloadedError: the queue is full.
            EngineFailedError: the engine has ended.
        """
        ...

    def cancel(self, request_id: str) -> None:
        """End a request soon. Unknown ids are ignored: the request may just have ended."""
        ...

    def stop_drafting(self) -> None:
        """Let every request that was submitted so far decode plainly from its next step."""
        ...

    def close(self) -> None:
        """End running requests as cancelled, and all threads."""
        ...


class OpenAiEndpoint(StrEnum):
    """Which of OpenAI's endpoints a request is for."""

    CHAT = "chat"
    COMPLETION = "completion"
    RESPONSES = "responses"


class OpenAiRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tensor `openai_request`: the JSON `body` of a request, as a client would send it to `endpoint`."""

    endpoint: OpenAiEndpoint
    body: msgspec.Raw


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """Part of the answer to an `OpenAiRequest`: a JSON body, or whole server-sent events, with the HTTP status that
    goes with all of it. `last` is False where more follows."""

    status: int
    data: bytes
    last: bool


OnReply = Callable[[Reply], None]


class OpenAiEngine(ServedEngine, Protocol):
    """An engine that also answers whole OpenAI requests."""

    def ask(self, request_id: str, request: OpenAiRequest, on_reply: OnReply, *, stops: int | None = None) -> None:
        """Answer `request`; its replies go to `on_reply`, which must not block, until the last. `cancel` ends it.
        `stops` as in `submit`.

        Raises:
            OverloadedError: the queue is full.
            EngineFailedError: the engine has ended.
        """
        ...
