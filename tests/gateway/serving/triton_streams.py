"""Long streams of a real Triton with the embedded pair, which are read piece by piece."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx

from tests.support.polling import PATIENCE_S, eventually

SPECULATIVE = {"x-slipstream-mode": "speculative", "x-slipstream-draft-length": "2"}
QUIET = {"x-slipstream-learn": "off"}
# Goes on for as long as it may under greedy decoding.
BODY = {
    "model": "slipstream-embedded",
    "prompt": "a",
    "temperature": 0,
    "max_tokens": 400,
    "stream": True,
    "stream_options": {"include_usage": True},
}


def events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line[6:])


class Streamed:
    """A stream that is being read: its text so far, and at its end what it drafted."""

    def __init__(self, response: httpx.Response) -> None:
        assert response.status_code == 200
        self._events = events(response)
        self.text, self.usage = "", {}

    def read(self, pieces: int | None = None) -> None:
        """So many pieces, or all that is left."""
        for event in self._events:
            self.usage = event.get("usage") or {}
            self.text += "".join(choice["text"] for choice in event["choices"])
            if pieces is not None and (pieces := pieces - 1) == 0:
                return

    @property
    def drafted(self) -> int:
        details = self.usage["completion_tokens_details"]
        return int(details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"])


def stream(served: Any, headers: dict[str, str], **more: Any) -> Any:
    """`more` goes into the body."""
    url = f"{served.url}/v1/completions"
    return httpx.stream("POST", url, json=BODY | more, headers=headers, timeout=PATIENCE_S)


def undisturbed(served: Any, **more: Any) -> Streamed:
    with stream(served, SPECULATIVE | QUIET, **more) as response:
        found = Streamed(response)
        found.read()
    return found


def decided(served: Any) -> dict[str, Any]:
    body = {"model": "slipstream-embedded", "prompt": "a", "max_tokens": 8}
    answer = httpx.post(f"{served.url}/v1/route", json=body, headers=SPECULATIVE, timeout=PATIENCE_S)
    found: dict[str, Any] = answer.json()
    return found


def until_decided(served: Any, arm: str) -> dict[str, Any]:
    return eventually(
        lambda: found if (found := decided(served))["arm"] == arm else None, f"arm {arm}", seen=lambda: decided(served)
    )
