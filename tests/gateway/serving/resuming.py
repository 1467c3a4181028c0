"""Streams that are held between their break and their resumption, so that tests can let something happen there."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tests.support.polling import eventually

TEXT = ", resume: text"
SCRIPT = "tokens=99999 gap=0.02"  # it goes on until its server is stopped
REST = "w0 w1 w2 "  # what a server says that goes on with it
HELD_S = 600.0


def hold(servers: list[Any]) -> tuple[Any, list[Any]]:
    """Stops the one of `servers` that gives a stream. Returns the one where the stream asks to go on, and which keeps
    it waiting until it is released; and the others, which were not asked."""
    eventually(lambda: any(server.requests for server in servers), "a stream")
    [running] = [server for server in servers if server.requests]
    others = [server for server in servers if server is not running]
    for server in others:
        server.slow_s = HELD_S
    running.stop()
    eventually(lambda: any(server.requests for server in others), "a resumption")
    [held] = [server for server in others if server.requests]
    others.remove(held)
    for server in others:
        server.slow_s = 0.0
    return held, others


class Reading:
    """A stream that is being read: its `text` so far, its `error`, and whether it said that it is `done`."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.text, self.error, self.done = "", None, False
        self._lines = iter(lines)

    def begin(self) -> None:
        """Reads the first word: with less there is nothing to go on from."""
        while not self.text:
            self._take(next(self._lines))

    def rest(self) -> tuple[str, Any, bool]:
        """All of the text, the error, and whether it is done, once the stream is over."""
        for line in self._lines:
            self._take(line)
        return self.text, self.error, self.done

    def _take(self, line: str) -> None:
        if line == "data: [DONE]":
            self.done = True
        elif line:
            event = json.loads(line.removeprefix("data: "))
            self.error = event.get("error", self.error)
            self.text += "".join(choice["delta"].get("content") or "" for choice in event.get("choices", []))


def committed(server: Any) -> str:
    """What `server` was told that the client has."""
    request = server.requests[-1]
    assert request["continue_final_message"] is True
    return str(request["messages"][-1]["content"])


def release(held: Any) -> None:
    """Lets the server refuse the stream that it kept waiting, as one that has not begun it."""
    held.status, held.slow_s = 503, 0.0
