"""The answers of a scripted server to `POST /v1/responses`, in the form of vLLM's."""

from __future__ import annotations

import json
from typing import Any

from tests.gateway.scripted_chat import Events

RESPONSE_ID = "resp_up"


def script_of(request: dict[str, Any]) -> str:
    """The text of the last item of `input`."""
    given = request.get("input") or ""
    if isinstance(given, str):
        return given
    content = given[-1].get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def response(request: dict[str, Any], text: str, usage: dict[str, int] | None, status: str) -> dict[str, Any]:
    """One response object; `usage` is chat's."""
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": None}
    message = {"id": "msg_up", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    counted = usage and {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["total_tokens"],
    }
    return {
        "id": RESPONSE_ID,
        "object": "response",
        "created_at": 1,
        "model": request["model"],
        "status": status,
        "output": [message] if text else [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": counted,
    }


class ResponseEvents(Events):
    """The events of one streamed response."""

    def __init__(self, request: dict[str, Any], end: bytes) -> None:
        super().__init__(request, end)
        self._text = ""
        self._number = 0

    def start(self) -> list[bytes]:
        item = {"id": "msg_up", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        return [
            self._event("response.created", response=response(self._request, "", None, "in_progress")),
            self._event("response.in_progress", response=response(self._request, "", None, "in_progress")),
            self._event("response.output_item.added", output_index=0, item=item),
        ]

    def token(self, word: str) -> bytes:
        self._text += word
        where = {"item_id": "msg_up", "output_index": 0, "content_index": 0}
        return self._event("response.output_text.delta", delta=word, logprobs=[], **where)

    def failure(self) -> list[bytes]:
        error = {"code": "server_error", "message": "scripted failure"}
        failed = {**response(self._request, self._text, None, "failed"), "error": error}
        return [self._event("response.failed", response=failed)]

    def finish(self, usage: dict[str, int] | None) -> list[bytes]:
        return []

    def close(self, usage: dict[str, int] | None) -> bytes:
        return self._event("response.completed", response=response(self._request, self._text, usage, "completed"))

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = json.dumps({"type": kind, "sequence_number": self._number, **fields}, separators=(",", ":"))
        self._number += 1
        return f"event: {kind}{self._line_end}data: {data}".encode() + self._end
