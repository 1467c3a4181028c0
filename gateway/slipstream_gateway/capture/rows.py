"""The rows of captured answers, as Parquet files have them. Imports pyarrow: for the writer and the tools alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa
from slipstream_core.manifest.capture import Capture

from slipstream_gateway.capture.frames import Captured
from slipstream_gateway.capture.redaction import Redactor
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
    ],
    metadata={"slipstream": "1"},
)
"""`request` is JSON: `messages` with `tools`, `prompt` or `input`, in OpenAI's form, with media left out. `is_text`:
the answer has neither reasoning nor tool calls. `key` is the public id of an API key. `prompt_token_ids` and
`token_ids` are null where the server returned none, and where a text was redacted, since ids would show it: the texts
can be tokenized again. `rejected_at` is as in `Captured`. `redactions` counts the replaced texts."""
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
    """The redacted row. Raises `ValueError` if the request or the answer is not in OpenAI's form, or if only both
    together, or parts of a message together, have something to redact."""
    fields = _fields_of(captured.request)
    texts, finish_reason = _answer_of(captured)
    if any(redactor.hides_between(*neighbours) for neighbours in _neighbours(fields, texts.get("content", ""))):
        raise ValueError("a text to redact is spread over several texts")
    before = redactor.redactions
    # Servers may render more fields than those that are kept, and the ids of the prompt would show them.
    request = redactor.json({name: value for name, value in fields.items() if name not in _OF_NO_PROMPT})
    redacted = {part: redactor.text(text) for part, text in texts.items()}
    redactions = redactor.redactions - before
    is_text = set(texts) <= {"content"}
    is_exact = is_text and not redactions
    return {
        **{name: getattr(captured, name) for name in _COPIED},
        "id": redactor.text(captured.request_id),
        "time": round(1000 * captured.time_s),
        "request": msgspec.json.encode({name: request[name] for name in _KEPT if name in request}).decode(),
        "reasoning": redacted.pop("reasoning", None),
        "answer": "\n".join(redacted.values()),
        "is_text": is_text,
        "finish_reason": finish_reason,
        "prompt_token_ids": list(captured.prompt_token_ids) if is_exact and captured.prompt_token_ids else None,
        "token_ids": list(captured.token_ids) if is_exact and captured.token_ids else None,
        "rejected_at": list(captured.rejected_at),
        "redactions": redactions,
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


def _neighbours(fields: Mapping[str, Any], answer: str) -> Iterator[tuple[str, str]]:
    """Texts that stand side by side: parts of a message, and a text with the answer that continues it."""
    messages = fields.get("messages")
    last = ""
    for message in messages if isinstance(messages, list) else ():
        parts = _parts_of(message)
        yield from pairwise(parts)
        last = parts[-1] if parts and message.get("role") == "assistant" else ""
    if text := fields.get("prompt") or last:
        yield text, answer


def _parts_of(message: Any) -> Sequence[str]:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        return [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return [content] if isinstance(content, str) else []


def _answer_of(captured: Captured) -> tuple[Mapping[str, str], str]:
    """The texts of the answer by part, and its finish reason."""
    if not captured.wire:
        return {"content": captured.text}, captured.finish_reason
    reader = AnswerReader(stream=captured.stream)
    reader.feed(b"".join(captured.wire))
    if not reader.texts and reader.finish_reason is None:
        raise ValueError("the answer has no text")
    return reader.texts, reader.finish_reason or captured.finish_reason
