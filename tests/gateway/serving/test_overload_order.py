"""What gives way first as load rises: real sockets, a real Triton that drafts, and a plain server that takes its time.

Speculation goes before requests do: drafts shrink, then there are none, then low priority waits, then it is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from slipstream_core.settings import AccessSettings, Limits, OverloadSettings

from tests.gateway.key_file import Keys
from tests.support.manifests import arm, external, pair_yaml
from tests.support.polling import PATIENCE_S, eventually

PLACES = 20
# Both arms are full of what the other does not do: plain streams that never end, and short answers with drafts.
POLICY = (
    ", allowClientMode: true, decision: rules, minOutputTokens: 1, maxRareTokenShare: 1, holdBackShare: 0,"
    " adaptiveDraftLength: false"
)
SUMMARIZE = (
    "Summarize the call for the CRM: reason, agent actions, outcome, next step.\n\nCustomer: My invoice is wrong."
)
ENDLESS = "tokens=99999 gap=30"


class Client:
    """Asks with a key."""

    def __init__(self, url: str, key: str, stack: contextlib.ExitStack) -> None:
        self._http = stack.enter_context(httpx.Client(base_url=url, timeout=PATIENCE_S))
        self._http.headers["authorization"] = f"Bearer {key}"
        self._stack = stack

    def ask(self, path: str = "/v1/chat/completions") -> httpx.Response:
        """An answer of 4 tokens, decided by what the policy says."""
        body = {"model": "acme", "messages": [{"role": "user", "content": SUMMARIZE}], "max_tokens": 4}
        return self._http.post(path, json=body)

    def hold(self) -> httpx.Response:
        """A stream that has begun, decodes plainly, and goes on until it is closed."""
        body = {"model": "acme", "messages": [{"role": "user", "content": ENDLESS}], "stream": True}
        asked = self._http.build_request(
            "POST", "/v1/chat/completions", json=body, headers={"x-slipstream-mode": "plain"}
        )
        response = self._http.send(asked, stream=True)
        self._stack.callback(response.close)
        assert response.status_code == 200
        return response


class Stand:
    """A gateway for 20 requests at once, of whom 2 more wait, and its clients."""

    def __init__(self, served: Any, keys: dict[str, str], stack: contextlib.ExitStack) -> None:
        self.normal = Client(served.url, keys["normal"], stack)
        self.low = Client(served.url, keys["low"], stack)
        self._served = served
        self._threads = stack.enter_context(ThreadPoolExecutor(4))

    def until(self, **admission: float) -> None:
        """Waits for the admission's metrics of those names to have those values."""

        def metrics() -> dict[str, float]:
            return {name: self._served.metric(f"slipstream_admission_{name}") for name in admission}

        eventually(lambda: metrics() == admission, str(admission), seen=metrics)

    def refused(self) -> float:
        return float(self._served.metric("slipstream_admission_refused_total", cause="queue_full"))

    def waiting(self, call: Callable[[], httpx.Response], *, queued: int) -> Future[httpx.Response]:
        """`call` in a thread, once it is in the queue, which is that long then."""
        future = self._threads.submit(call)
        self.until(queued=queued)
        return future


@pytest.fixture
def stand(
    gateway: Callable[..., Any],
    openai_server: Callable[..., Any],
    triton_endpoint: str,
    tmp_path: Path,
    exit_stack: contextlib.ExitStack,
) -> Stand:
    file = Keys(tmp_path / "keys.json")
    keys = {"normal": file.create(), "low": file.create("--priority", "low"), "admin": file.create("--admin")}
    triton = arm(f"grpc://{triton_endpoint}", model="embedded", protocol="triton")
    served = gateway(
        pair_yaml(external(arm(openai_server().url), triton), "maxDraftTokens: 4", policy=POLICY),
        access=AccessSettings(keys=file.path),
        limits=Limits(max_in_flight=PLACES, max_queued=2, queue_timeout_s=PATIENCE_S),
        overload=OverloadSettings(adaptive=False),
    )
    served.headers["authorization"] = f"Bearer {keys['admin']}"
    return Stand(served, keys, exit_stack)


def test_as_load_rises_drafts_shrink_then_end_then_low_priority_waits_then_it_is_refused(stand: Stand) -> None:
    found = []
    held = []
    for _ in range(PLACES):
        answer, explained = stand.normal.ask(), stand.normal.ask("/v1/route").json()
        assert answer.status_code == 200
        length, reason = answer.headers["x-slipstream-draft-length"], answer.headers["x-slipstream-reason"]
        assert (explained["draft_length"], explained["reason"]) == (int(length), reason)
        found.append((int(length), reason))
        held.append(stand.normal.hold())
        stand.until(in_flight=len(held))  # who was asked before is gone
    pays, pressure = "speculation_pays", "pressure"
    expected = [(4, pays)] * 15 + [(3, pays), (2, pays), (1, pays), (0, pressure), (0, pressure)]
    assert found == expected

    # Every place is taken. The low one comes first, waits, and is served after who comes later.
    low = stand.waiting(stand.low.ask, queued=1)
    later = stand.waiting(stand.normal.hold, queued=2)
    assert stand.low.ask().status_code == 429  # the queue has an end
    held.pop().close()
    assert later.result(PATIENCE_S).headers["x-slipstream-arm"] == "plain"
    assert not low.done()

    # Another of its kind fills the queue, and the next one is let in at the low one's cost.
    others = [stand.waiting(stand.normal.ask, queued=2)]
    refused = stand.refused()
    others.append(stand.waiting(stand.normal.ask, queued=2))
    assert low.result(PATIENCE_S).status_code == 429
    assert stand.refused() == refused + 1
    for holder in held:
        holder.close()
    assert [other.result(PATIENCE_S).status_code for other in others] == [200, 200]
