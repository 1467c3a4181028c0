"""The streams of a scripted server: what its script asks for, as the events of one endpoint."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any


class Events(ABC):
    """The events of one stream. `end` closes each: LF LF or CRLF CRLF."""

    def __init__(self, request: dict[str, Any], end: bytes) -> None:
        self._request = request
        self._end = end
        self._line_end = end[: len(end) // 2].decode()

    @abstractmethod
    def start(self) -> list[bytes]:
        """Before the first token."""

    @abstractmethod
    def token(self, word: str) -> bytes: ...

    @abstractmethod
    def failure(self) -> list[bytes]:
        """The server's own error, and what follows it."""

    @abstractmethod
    def finish(self, usage: dict[str, int] | None) -> list[bytes]:
        """After the last token."""

    @abstractmethod
    def close(self, usage: dict[str, int] | None) -> bytes:
        """By which a client knows that nothing is missing."""


class ChatEvents(Events):
    """The chunks of one streamed chat completion; `scored` tokens of each have log-probabilities."""

    def __init__(
        self, request: dict[str, Any], end: bytes, *, answer_id: str, finish_reason: str, scored: int = 0
    ) -> None:
        super().__init__(request, end)
        self._scores = {"logprobs": {"content": [{"token": "x", "logprob": -0.1}] * scored}} if scored else {}
        self._answer_id = answer_id
        self._finish_reason = finish_reason

    def start(self) -> list[bytes]:
        return [self._delta({"role": "assistant", "content": ""})]

    def token(self, word: str) -> bytes:
        return self._delta({"content": word}, **self._scores)

    def failure(self) -> list[bytes]:
        error = {"message": "scripted failure", "type": "InternalServerError", "code": 500}
        return [b"data: " + json.dumps({"error": error}).encode() + self._end, b"data: [DONE]" + self._end]

    def finish(self, usage: dict[str, int] | None) -> list[bytes]:
        events = [self._delta({}, self._finish_reason)]
        if (self._request.get("stream_options") or {}).get("include_usage") and usage is not None:
            events.append(self._event([], usage=usage))
        return events

    def close(self, usage: dict[str, int] | None) -> bytes:
        return b"data: [DONE]" + self._end

    def _delta(self, value: dict[str, str], finish: str | None = None, **more: Any) -> bytes:
        return self._event([{"index": 0, "delta": value, **more, "finish_reason": finish}])

    def _event(self, choices: list[Any], **more: Any) -> bytes:
        model = self._request["model"]
        value = {"id": self._answer_id, "object": "chat.completion.chunk", "created": 1, "model": model}
        return b"data: " + json.dumps({**value, "choices": choices, **more}).encode() + self._end
