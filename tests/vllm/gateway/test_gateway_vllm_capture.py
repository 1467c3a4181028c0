"""Answers of real vLLM servers are captured with the tokens of their prompts, and the real `speculators` reads them."""

from __future__ import annotations

import signal
from pathlib import Path

import httpx
import pytest
from slipstream_gateway.capture.store import CaptureStore
from slipstream_tools.cli import main
from slipstream_tools.up.vllm_environment import VllmInstall
from slipstream_tools.up.vllm_server import VllmServer

from tests.gateway.capture.captures import rows_of
from tests.support.gateway_process import Process
from tests.support.polling import eventually
from tests.support.ports import lasting_ports
from tests.support.speculators import training_rows
from tests.vllm.gateway.conftest import MODEL, manifest
from tests.vllm.gateway.vllm_answers import CALL

WAIT_S = 60.0


@pytest.mark.slow  # imports another training framework
def test_speculators_reads_the_exact_tokens(vllm_install: VllmInstall, vllm_server: VllmServer, tmp_path: Path) -> None:
    folder, path, output = tmp_path / "captures", tmp_path / "pair.yaml", tmp_path / "rows.jsonl"
    path.write_text(manifest([vllm_server.url], policy=", capture: {share: 1}"))
    [port] = lasting_ports(1)
    process = Process(path, port, "--capture-store", str(folder))
    process.wait_live()
    body = {"model": MODEL, "messages": [{"role": "user", "content": CALL}], "temperature": 0, "max_tokens": 24}
    url = f"{process.url}/v1/chat/completions"

    def asked(stream: bool) -> httpx.Response:
        return httpx.post(url, json={**body, "stream": stream}, timeout=WAIT_S)

    # Before its check a server is not known to return token ids.
    eventually(lambda: asked(False).headers.get("x-slipstream-reason") != "engine_unverified", "the server is checked")
    whole, streamed = asked(False), asked(True)
    process.child.send_signal(signal.SIGTERM)
    process.child.wait(WAIT_S)

    assert "token_ids" not in whole.json()["choices"][0] or whole.json()["choices"][0]["token_ids"] is None
    *_, one, other = rows_of(CaptureStore.at(str(folder)))
    direct = httpx.post(
        f"{vllm_server.url}/v1/chat/completions", json={**body, "return_token_ids": True}, timeout=WAIT_S
    ).json()
    assert one["answer"] == other["answer"] == direct["choices"][0]["message"]["content"]
    assert one["prompt_token_ids"] == other["prompt_token_ids"] == direct["prompt_token_ids"]
    assert one["token_ids"] == other["token_ids"] == direct["choices"][0]["token_ids"]

    assert main(["drafts", "export", "--store", str(folder), "--format", "speculators", "--output", str(output)]) == 0
    row = {
        "input_ids": [*one["prompt_token_ids"], *one["token_ids"]],
        "loss_mask": [0] * len(one["prompt_token_ids"]) + [1] * len(one["token_ids"]),
    }
    assert row in training_rows(vllm_install, output)
    assert streamed.status_code == 200
