"""Prompts, answers and secrets leave the gateway for the one they belong to, and for no log, metric, span or error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.gateway.key_file import Keys
from tests.gateway.pair_manifest import chat, manifest_text
from tests.support.gateway_process import Process
from tests.support.polling import PATIENCE_S

PROMPT = "canary-prompt-7f3a"
WRONG_KEY = "sk-canary-wrong-key-11d0"
UPSTREAM_KEY = "canary-upstream-key-52be"
REDIS_PASSWORD = "canary-redis-password-93aa"


def requests(key: str) -> list[tuple[str, dict[str, Any], str]]:
    """Path, body and key: what goes well, and what goes wrong in each way."""
    scripts = ("tokens=3", "status=400", "status=500", "status=503", "die=0", "garbage", "early-end")
    asked = [
        ("/v1/chat/completions", chat(f"{script} {PROMPT}", stream=stream), key)
        for script in scripts
        for stream in (False, True)
    ]
    asked.append(("/v1/chat/completions", chat("tokens=6 die=3 " + PROMPT, stream=True), key))
    asked.append(("/v1/completions", {"model": "acme", "prompt": [PROMPT, PROMPT]}, key))
    asked.append(("/v1/chat/completions", chat(PROMPT, temperature=-99), key))
    asked.append(("/v1/chat/completions", chat(PROMPT), WRONG_KEY))
    asked.append(("/v1/route", chat(PROMPT), key))
    asked.append(("/v1/chat/completions", {**chat(PROMPT), "model": "no-such-model"}, key))
    return asked


def test_no_prompt_and_no_secret_is_anywhere_but_where_it_belongs(
    tmp_path: Path,
    free_ports: Callable[[int], list[int]],
    openai_server: Callable[..., Any],
    otlp_receiver: Any,
) -> None:
    keys, audit, log = tmp_path / "keys.json", tmp_path / "audit.jsonl", tmp_path / "gateway.log"
    key, server = Keys(keys).create("--name", "team", "--admin"), openai_server()
    manifest = tmp_path / "pair.yaml"
    text = manifest_text([server.url]).replace("model: acme, endpoints", "model: acme, apiKeyEnv: UP, endpoints")
    manifest.write_text(text.replace("apiKeyEnv: UP", "apiKeyEnv: UPSTREAM_API_KEY"))
    [port] = free_ports(1)
    options = ["--log-level", "debug", "--keys", str(keys), "--audit-log", str(audit), "--connect-timeout", "1"]
    secrets = {
        "UPSTREAM_API_KEY": UPSTREAM_KEY,
        "SLIPSTREAM_REDIS_URL": f"redis://user:{REDIS_PASSWORD}@127.0.0.1:9/0",
        "OTEL_EXPORTER_OTLP_ENDPOINT": otlp_receiver.url,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
    answers = []
    process = Process(manifest, port, *options, log=log, environment=secrets)
    try:
        process.wait_live()
        with httpx.Client(base_url=process.url, timeout=PATIENCE_S) as client:
            for path, body, credential in requests(key):
                headers = {"authorization": f"Bearer {credential}"}
                answers.append(client.post(path, json=body, headers=headers))
            admin = {"authorization": f"Bearer {key}"}
            metrics = client.get("/metrics", headers=admin).text + client.get("/v1/evidence", headers=admin).text
    finally:
        process.stop()
    assert {200, 400, 401, 404, 502, 503} <= {answer.status_code for answer in answers}
    assert server.headers[0]["authorization"] == f"Bearer {UPSTREAM_KEY}"  # the upstream's own, never the client's
    decisions = [json.loads(line) for line in audit.read_text().splitlines()]
    assert {"ok", "upstream_failed"} <= {line.get("status") for line in decisions}
    assert otlp_receiver.got
    places = {
        "log": log.read_bytes(),
        "metrics": metrics.encode(),
        "spans": otlp_receiver.all_bytes(),
        "audit log": audit.read_bytes(),
        "answers": b"".join(answer.content + repr(answer.headers.raw).encode() for answer in answers),
    }
    found = [
        (place, canary)
        for place, data in places.items()
        for canary in (PROMPT, key, key.rpartition("_")[2], WRONG_KEY, UPSTREAM_KEY, REDIS_PASSWORD)
        if canary.encode() in data
    ]
    assert found == []
