"""The rows of captured answers, as Parquet files have them. Imports pyarrow: for the writer and the tools alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
from slipstream_core.manifest.capture import Capture

from slipstream_gateway.capture.frames import Captured
from slipstream_gateway.capture.redaction.redactor import Redactor
from slipstream_gateway.upstreams.openai_answer import AnswerReader

Row = dict[str, Any]

_IDS = pa.list_(pa.int32())
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("time", pa.timestamp("ms", tz="UTC")),
        ("pair", pa.string()),
        ("model", pa.string()),
        ("target", pa.string()),
        ("fingerprint", pa.string()),
        ("key", pa.string()),
        ("request_class", pa.string()),
        ("arm", pa.string()),
        ("draft_length", pa.int32()),
        ("temperature", pa.float32()),
        ("top_p", pa.float32()),
        ("endpoint", pa.string()),
        ("request", pa.string()),
        ("reasoning", pa.string()),
        ("answer", pa.string()),
        ("is_text", pa.bool_()),
        ("finish_reason", pa.string()),
        ("prompt_token_ids", _IDS),
        ("token_ids", _IDS),
        ("prompt_tokens", pa.int32()),
        ("output_tokens", pa.int32()),
        ("drafted", pa.int32()),
        ("accepted", pa.int32()),
        ("steps", pa.int32()),
        ("rejected_at", _IDS),
        ("redactions", pa.int32()),
        ("size_bytes", pa.int32()),
    ],
    metadata={"slipstream": "1"},
)
"""`request` is JSON: `messages` with `tools`, `prompt` or `input`, in OpenAI's form, with media left out. `is_text`:
the answer has neither reasoning nor tool calls. `key` is the public id of an API key. `prompt_token_ids` and
`token_ids` are null where the server returned none, and where a text was redacted, since ids would show it: the texts
can be tokenized again. `rejected_at` is as in `Captured`. `redactions` counts the replaced texts. `size_bytes` is the
length of request and answer."""
_KEPT = ("messages", "tools", "prompt", "input", "instructions")
_MEDIA = frozenset({"image_url", "audio_url", "video_url", "input_audio", "input_image", "image_embeds", "file"})
_OF_NO_PROMPT = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key"})
_COPIED = (
    "pair", "model", "target", "fingerprint", "key", "request_class", "arm", "draft_length", "temperature", "top_p",
    "endpoint", "prompt_tokens", "output_tokens", "drafted", "accepted", "steps", "rejected_at",
)  # fmt: skip


class Redactors:
    """The redactor of each pair's settings."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Capture, Redactor]] = {}

    def of(self, pair: str, capture: Capture) -> Redactor:
        known = self._known.get(pair)
        if known is None or known[0] != capture:
            known = self._known[pair] = (capture, Redactor(capture))
        return known[1]


def row_of(captured: Captured, redactor: Redactor) -> Row:
    """The redacted row. Raises `ValueError` if the request or the answer is not in OpenAI's form."""
    fields = _fields_of(captured.request)
    texts, finish_reason = _answer_of(captured)
    before = redactor.redactions
    said: list[tuple[str, str]] = []
    # Servers may render more fields than those that are kept, and the ids of the prompt would show them.
    silent = _each_said(
        {name: value for name, value in fields.items() if name not in _OF_NO_PROMPT}, partial(_take, said)
    )
    spoken = iter(redactor.conversation([*said, *(("assistant", text) for text in texts.values())]))
    request = _each_said(redactor.json(silent), lambda *_: next(spoken))
    redacted = dict(zip(texts, spoken, strict=True))
    redactions = redactor.redactions - before
    is_text = set(texts) <= {"content"}
    is_exact = is_text and not redactions
    kept = msgspec.json.encode({name: request[name] for name in _KEPT if name in request}).decode()
    return {
        **{name: getattr(captured, name) for name in _COPIED},
        "id": redactor.text(captured.request_id),
        "time": round(1000 * captured.time_s),
        "request": kept,
        "reasoning": redacted.pop("reasoning", None),
        "answer": "\n".join(redacted.values()),
        "is_text": is_text,
        "finish_reason": finish_reason,
        "prompt_token_ids": list(captured.prompt_token_ids) if is_exact and captured.prompt_token_ids else None,
        "token_ids": list(captured.token_ids) if is_exact and captured.token_ids else None,
        "rejected_at": list(captured.rejected_at),
        "redactions": redactions,
        "size_bytes": len(kept) + sum(map(len, texts.values())),
    }


def table_of(rows: Sequence[Row]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)


def _fields_of(body: bytes) -> dict[str, Any]:
    """The body, without the media in its messages."""
    fields = msgspec.json.decode(body)
    if not isinstance(fields, dict):
        raise ValueError("the request is not a JSON object")
    prompt = fields.get("prompt", "")
    if isinstance(prompt, list) and len(prompt) == 1:
        fields["prompt"] = prompt = prompt[0]
    if not isinstance(prompt, str):
        raise ValueError("the prompt is no text: its token ids cannot be redacted")
    return {name: _without_media(value) if name in ("messages", "input") else value for name, value in fields.items()}


def _without_media(node: Any) -> Any:
    """`node` without the content of images, audio and files: of such a part of a message the type is left."""
    if isinstance(node, list):
        return [_without_media(item) for item in node]
    if not isinstance(node, dict):
        return node
    kind = node.get("type")
    if isinstance(kind, str) and any(word in kind for word in ("image", "audio", "video", "file")):
        return {"type": kind}
    if media := sorted(_MEDIA & node.keys()):
        return {"type": media[0]}
    return {name: _without_media(value) for name, value in node.items()}


def _each_said(fields: Mapping[str, Any], change: Callable[[str, str], str]) -> dict[str, Any]:
    """The fields of a request with `change(role, text)` in place of each text that is said: those of the messages and
    the prompt, in their order."""
    changed = dict(fields)
    if isinstance(messages := fields.get("messages"), list):
        changed["messages"] = [_each_part(message, change) for message in messages]
    if isinstance(prompt := fields.get("prompt"), str):
        changed["prompt"] = change("user", prompt)
    return changed


def _each_part(message: Any, change: Callable[[str, str], str]) -> Any:
    if not isinstance(message, dict):
        return message
    role, content = str(message.get("role")), message.get("content")
    if isinstance(content, str):
        return {**message, "content": change(role, content)}
    if isinstance(content, list):
        parts = [
            {**part, "text": change(role, part["text"])}
            if isinstance(part, dict) and isinstance(part.get("text"), str)
            else part
            for part in content
        ]
        return {**message, "content": parts}
    return message


def _take(said: list[tuple[str, str]], role: str, text: str) -> str:
    said.append((role, text))
    return ""


def _answer_of(captured: Captured) -> tuple[Mapping[str, str], str]:
    """The texts of the answer by part, and its finish reason."""
    reader = AnswerReader(stream=captured.stream)
    reader.feed(b"".join(captured.wire))
    if not reader.texts and reader.finish_reason is None:
        raise ValueError("the answer has no text")
    return reader.texts, reader.finish_reason or ""
