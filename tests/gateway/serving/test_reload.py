"""A manifest that changes under load: no request is lost, and a bad one changes nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import httpx

WAIT_S = 20.0


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.02)


def test_reload_under_load_drops_no_request_and_closes_what_is_no_longer_used(
    gateway: Callable[..., Any], openai_server: Callable[..., Any], manifest_text: Any, chat: Any
) -> None:
    old, new = openai_server(), openai_server()
    served = gateway(manifest_text([old.url]))
    url = f"{served.url}/v1/chat/completions"
    stop, bad = threading.Event(), []

    def load() -> None:
        with httpx.Client(timeout=WAIT_S) as client:
            while not stop.is_set():
                response = client.post(url, json=chat("tokens=4 gap=0.01", stream=True))
                if response.status_code != 200 or not response.text.endswith("[DONE]\n\n"):
                    bad.append(response.text)

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(old.requests) > 5, "load")
    served.manifest.write_text(manifest_text([new.url]))
    wait_for(lambda: len(new.requests) > 10, "the reload")
    count = len(old.requests)
    wait_for(lambda: len(new.requests) > 20, "more load")
    assert len(old.requests) <= count + 3  # those that had started with the old table
    stop.set()
    for thread in threads:
        thread.join(WAIT_S)
    assert bad == []


def test_running_stream_finishes_on_the_server_it_started_with(
    gateway: Callable[..., Any], openai_server: Callable[..., Any], manifest_text: Any, chat: Any
) -> None:
    old, new = openai_server(), openai_server()
    served = gateway(manifest_text([old.url]))
    url = f"{served.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=chat("tokens=40 gap=0.05", stream=True), timeout=WAIT_S) as response:
        lines = response.iter_lines()
        next(lines)
        served.manifest.write_text(manifest_text([new.url]))
        wait_for(lambda: httpx.post(url, json=chat("x")).status_code == 200 and len(new.requests) > 0, "reload")
        rest = list(lines)
    assert rest[-2:] == ["data: [DONE]", ""] or rest[-1] == "data: [DONE]"


def test_bad_manifest_leaves_the_good_one_in_place(
    gateway: Callable[..., Any], openai_server: Callable[..., Any], manifest_text: Any, chat: Any
) -> None:
    server = openai_server()
    served = gateway(manifest_text([server.url]))
    good = served.manifest.read_text()
    url = f"{served.url}/v1/chat/completions"
    served.manifest.write_text("kind: Nonsense\n")
    served.manifest.write_text(good.replace("maxDraftTokens: 5", "maxDraftTokens: many"))
    time.sleep(1.2)  # two looks at the file; what is tested is that nothing happens
    assert httpx.post(url, json=chat("tokens=1"), timeout=WAIT_S).status_code == 200
    served.manifest.write_text(good.replace("model: acme\n  max", "model: renamed\n  max"))
    wait_for(lambda: httpx.post(url, json={**chat("tokens=1"), "model": "renamed"}).status_code == 200, "the new name")
