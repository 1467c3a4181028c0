"""The kill switch in the manifest's file, before a real Triton: what runs goes on, and nobody can tell by its text."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from slipstream_gateway.manifest import EMBEDDED_MANIFEST

WAIT_S = 60.0
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
KILLS = {
    "pair": ("  model: slipstream-embedded\n", "  model: slipstream-embedded\n  killSwitch: true\n"),
    "policy": ("  pair: embedded\n", "  pair: embedded\n  killSwitch: true\n"),
}


# The engine does not wait for a busy machine's gateway to look at the file: a kill may come when all is said.
ATTEMPTS = 8


@pytest.fixture
def serve(gateway: Callable[..., Any], triton_endpoint: str) -> Callable[[], Any]:
    """Starts a gateway that has learnt nothing."""
    text = EMBEDDED_MANIFEST.read_text().replace(
        "kind: slipstream\n", f'kind: slipstream\n    endpoints: ["grpc://{triton_endpoint}"]\n'
    )

    def start() -> Any:
        running = gateway(text)
        running.text = text
        return running

    return start


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


def stream(served: Any, headers: dict[str, str]) -> Any:
    return httpx.stream("POST", f"{served.url}/v1/completions", json=BODY, headers=headers, timeout=WAIT_S)


def undisturbed(served: Any) -> Streamed:
    with stream(served, SPECULATIVE | QUIET) as response:
        found = Streamed(response)
        found.read()
    return found


def decided(served: Any) -> dict[str, Any]:
    body = {"model": "slipstream-embedded", "prompt": "a", "max_tokens": 8}
    answer = httpx.post(f"{served.url}/v1/route", json=body, headers=SPECULATIVE, timeout=WAIT_S)
    found: dict[str, Any] = answer.json()
    return found


def until_decided(served: Any, arm: str) -> dict[str, Any]:
    deadline = time.monotonic() + WAIT_S
    while (found := decided(served))["arm"] != arm:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def across_a_kill(served: Any, whose: str) -> list[Streamed]:
    """Two streams, amid which the kill switch was turned on."""
    with stream(served, SPECULATIVE) as one, stream(served, SPECULATIVE) as other:
        running = [Streamed(one), Streamed(other)]
        for found in running:
            found.read(pieces=5)
        served.manifest.write_text(served.text.replace(*KILLS[whose]))
        killed = until_decided(served, "plain")
        assert killed["reason"] == "kill_switch"
        for response, found in zip((one, other), running, strict=True):
            assert response.headers["x-slipstream-arm"] == "speculative"  # what it was decided to be
            found.read()
    return running


@pytest.mark.parametrize("whose", KILLS)
def test_greedy_streams_across_a_kill_are_those_of_an_undisturbed_run(serve: Callable[[], Any], whose: str) -> None:
    for _ in range(ATTEMPTS):
        served = serve()
        whole = undisturbed(served)
        running = across_a_kill(served, whose)
        for found in running:
            assert found.text == whole.text
            assert found.usage["completion_tokens"] == 400
            assert found.drafted > 0
        if all(found.drafted < whole.drafted for found in running):
            break
        served.stop()
    else:
        pytest.fail(f"in none of {ATTEMPTS} attempts did two streams stop drafting")
    # An answer of two halves teaches nothing of either.
    assert served.metric("slipstream_estimates_fingerprints") == 0
    assert served.metric("slipstream_requests_total", arm="speculative", status="ok") == 3
    served.manifest.write_text(served.text)
    assert until_decided(served, "speculative")["reason"] == "client_asked"
    assert undisturbed(served).drafted == whole.drafted
