"""A manifest that changes under load: no request is lost, and a bad one changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from slipstream_core.manifest import EMBEDDED_MANIFEST
from slipstream_tools.up.gateway_process import GatewayProcess
from slipstream_tools.up.options import UpOptions
from slipstream_tools.up.triton_server import TritonServer

from tests.gateway.pair_manifest import chat, manifest_text
from tests.support.polling import PATIENCE_S, eventually


def test_reload_under_load_drops_no_request_and_closes_what_is_no_longer_used(
    gateway: Callable[..., Any], openai_server: Callable[..., Any]
) -> None:
    old, new = openai_server(), openai_server()
    served = gateway(manifest_text([old.url]))
    url = f"{served.url}/v1/chat/completions"
    stop, bad = threading.Event(), []

    def load() -> None:
        with httpx.Client(timeout=PATIENCE_S) as client:
            while not stop.is_set():
                response = client.post(url, json=chat("tokens=4 gap=0.01", stream=True))
                if response.status_code != 200 or not response.text.endswith("[DONE]\n\n"):
                    bad.append(response.text)

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(old.requests) > 5, "load")
    served.manifest.write_text(manifest_text([new.url]))
    eventually(lambda: len(new.requests) > 10, "the reload")
    count = len(old.requests)
    eventually(lambda: len(new.requests) > 20, "more load")
    assert len(old.requests) <= count + 3  # those that had started with the old table
    stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert bad == []


def test_running_stream_finishes_on_the_server_it_started_with(
    gateway: Callable[..., Any], openai_server: Callable[..., Any]
) -> None:
    old, new = openai_server(), openai_server()
    served = gateway(manifest_text([old.url]))
    url = f"{served.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=chat("tokens=40 gap=0.05", stream=True), timeout=PATIENCE_S) as response:
        lines = response.iter_lines()
        next(lines)
        served.manifest.write_text(manifest_text([new.url]))
        eventually(lambda: httpx.post(url, json=chat("x")).status_code == 200 and len(new.requests) > 0, "reload")
        rest = list(lines)
    assert rest[-2:] == ["data: [DONE]", ""] or rest[-1] == "data: [DONE]"


def test_bad_manifest_leaves_the_good_one_in_place(
    gateway: Callable[..., Any], openai_server: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    server = openai_server()
    served = gateway(manifest_text([server.url]))
    good = served.manifest.read_text()
    url = f"{served.url}/v1/chat/completions"
    served.manifest.write_text("kind: Nonsense\n")
    served.manifest.write_text(good.replace("maxDraftTokens: 5", "maxDraftTokens: many"))
    served.manifest.write_text(good.replace(server.url, "http://host\\\\x:80"))
    eventually(lambda: "the last good one stays" in caplog.text, "a look at the last of them")
    assert httpx.post(url, json=chat("tokens=1"), timeout=PATIENCE_S).status_code == 200
    served.manifest.write_text(good.replace("model: acme\n  max", "model: renamed\n  max"))
    eventually(
        lambda: httpx.post(url, json={**chat("tokens=1"), "model": "renamed"}).status_code == 200, "the new name"
    )


def test_pair_that_comes_with_a_reload_goes_to_the_local_triton(
    tmp_path: Path, triton_server: TritonServer, free_ports: Callable[[int], list[int]]
) -> None:
    manifest = tmp_path / "pair.yaml"
    manifest.write_text(EMBEDDED_MANIFEST.read_text())
    options = UpOptions(manifest=manifest, port=free_ports(1)[0], grpc_port=triton_server.ports.grpc)
    url = f"{options.url}/v1/completions"
    gateway = GatewayProcess(options=options, run_dir=tmp_path)
    try:
        gateway.wait_ready(timeout_s=PATIENCE_S)
        renamed = (
            manifest.read_text().replace("name: embedded", "name: renamed").replace("pair: embedded", "pair: renamed")
        )
        served = renamed.replace("kind: slipstream\n", "kind: slipstream\n    tritonModel: embedded\n")
        manifest.write_text(served.replace("model: slipstream-embedded", "model: new"))
        body = {"model": "new", "prompt": "Hello", "max_tokens": 2}
        eventually(lambda: httpx.post(url, json=body, timeout=PATIENCE_S).status_code == 200, "an answer")
        manifest.write_text(renamed)
        eventually(lambda: "'renamed': restart" in gateway.child.log_tail(), "the warning")
    finally:
        gateway.stop()
