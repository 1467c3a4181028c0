"""Answers for capture, and stores to read them from."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from slipstream_core.manifest.capture import Capture
from slipstream_gateway.capture.frames import Captured, Configured
from slipstream_gateway.capture.store import CaptureStore
from slipstream_gateway.capture.writer import Writer

PAIR = "serving/acme"


def captured(text: str = "Fine, thank you.", **changes: Any) -> Captured:
    """A whole answer to a chat, or to the `body` of another request; `prompt` is the chat's question."""
    prompt = changes.pop("prompt", "How are you?")
    body = changes.pop("body", {"model": "acme", "messages": [{"role": "user", "content": prompt}]})
    fields: dict[str, Any] = {
        "pair": PAIR,
        "model": "acme",
        "target": "models/acme@v1",
        "fingerprint": "fp",
        "request_id": "r-1",
        "key": "team-a",
        "time_s": 1_796_000_000.25,
        "request_class": "open_chat/short",
        "arm": "speculative",
        "draft_length": 4,
        "temperature": 0.0,
        "top_p": 1.0,
        "endpoint": "chat",
        "request": msgspec.json.encode(body),
        "wire": (answer_body(text, chat="prompt" not in body),),
        "stream": False,
        "token_ids": (5, 6, 7),
        "prompt_token_ids": (1, 2),
        "prompt_tokens": 2,
        "output_tokens": 3,
        "drafted": 8,
        "accepted": 2,
        "steps": 2,
        "rejected_at": (1, 1),
    }
    return Captured(**(fields | changes))


def fill(folder: Path, answers: Iterable[Captured], *, pair: str = PAIR, **rules: Any) -> None:
    """Writes a file of answers into the store in `folder`; `rules` are fields of the pair's `capture`."""
    writer = Writer(CaptureStore.at(str(folder)), lambda report: None)
    writer.take(Configured(pair=pair, capture=Capture(share=1.0, **rules)))
    for answer in answers:
        writer.take(answer)
    writer.close()


def answer_body(text: str, *, chat: bool = True) -> bytes:
    """The body of a chat or of a text completion that ended by itself."""
    answer = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    return msgspec.json.encode({"choices": [{"index": 0, **answer, "finish_reason": "stop"}]})


def rows_of(store: CaptureStore) -> list[dict[str, Any]]:
    """All rows of a store, file after file."""
    return [row for file in store.files() for row in store.read(file).to_pylist()]
