"""Streamed answers that were read to their end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

DONE = "[DONE]"


def events_of(body: str) -> list[Any]:
    """The events, with `DONE` as it is. A text may hold what `splitlines` takes for the end of a line."""
    lines = body.replace("\r\n", "\n").split("\n")
    strange = [line for line in lines if line and not line.startswith(("data: ", "event: ", ":"))]
    assert not strange, strange
    found = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [data if data == DONE else json.loads(data) for data in found]


def whole_events_of(body: str) -> list[Any]:
    """The events before `DONE`, which must be the last one."""
    *events, last = events_of(body)
    assert last == DONE, last
    return events


def text_of(events: Sequence[Any]) -> str:
    """The text of a chat's events."""
    choices = [choice for event in events if event != DONE for choice in event.get("choices", ())]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def whole_text_of(body: str) -> str:
    """The text of a chat that has its regular end."""
    events = whole_events_of(body)
    assert not [event for event in events if "error" in event], events
    return text_of(events)
