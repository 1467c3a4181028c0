"""Conformance over real vLLM servers: one whose sampled answers are garbage when it speculates, and one that is right.

vLLM for CPUs replaces the kernels of its rejection sampler by code that reads uninitialised temperatures. A stock
server with `--speculative-config` is exactly what the check is for: its sampled answers are no language, and neither
are greedy answers that share a batch with them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from slipstream_tools.up.gateway_process import GatewayProcess
from slipstream_tools.up.options import UpOptions
from slipstream_tools.up.vllm_server import VllmServer

from tests.support.manifests import arm, external, pair_yaml
from tests.support.metrics import total
from tests.support.polling import eventually
from tests.support.ports import lasting_ports

# A server checks and answers for minutes beside other tests. tests/gateway/lossless has scripted servers.
pytestmark = pytest.mark.slow

WAIT_S = 240.0
MODEL = "slipstream-embedded"
PROMPT = "Summarize the call in two sentences.\n\nAgent: Hello, how can I help?\nCustomer: My order is late."
POLICY = ", allowClientMode: true, maxTemperature: 2, parityShare: 0"


def two_pools(plain: str, speculative: str) -> str:
    return external(arm(plain, model=MODEL), arm(speculative, model=MODEL))


def one_pool(url: str) -> str:
    return f'{{kind: vllm, model: {MODEL}, endpoints: ["{url}"]}}'


class Running:
    """A gateway with what it logged."""

    def __init__(self, options: UpOptions, run_dir: Path) -> None:
        self.url = options.url
        self.process = GatewayProcess(options=options, run_dir=run_dir)
        self.process.wait_ready(timeout_s=60.0)

    def ask(self, temperature: float) -> httpx.Response:
        body = {
            "model": "acme",
            "messages": [{"role": "user", "content": PROMPT}],
            "max_tokens": 16,
            "temperature": temperature,
        }
        headers = {"x-slipstream-mode": "speculative"}
        answer = httpx.post(f"{self.url}/v1/chat/completions", json=body, headers=headers, timeout=WAIT_S)
        assert answer.status_code == 200, answer.text
        return answer

    def conformance(self) -> dict[str, Any]:
        """What the gateway knows of the only server of the speculative arm."""
        [pair] = httpx.get(f"{self.url}/v1/evidence", timeout=WAIT_S).json()["data"]
        [server] = pair["conformance"]
        return dict(server)

    def verdict(self) -> dict[str, Any]:
        """The same once there is a verdict."""
        eventually(lambda: self.conformance()["checked_s"] is not None, "a verdict", within_s=WAIT_S, seen=self.log)
        return self.conformance()

    def metric(self, name: str, **labels: str) -> float:
        return total(httpx.get(f"{self.url}/metrics", timeout=WAIT_S).text, name, **labels)

    def log(self) -> str:
        return self.process.child.log_path.read_text()


@pytest.fixture
def run_gateway(tmp_path: Path, exit_stack: ExitStack) -> Callable[[str], Running]:
    """Starts gateways for the text of a pair's engine; all are stopped after the test."""

    def run(engine: str) -> Running:
        manifest = tmp_path / "pair.yaml"
        manifest.write_text(pair_yaml(engine, "maxDraftTokens: 4", policy=POLICY))
        [port] = lasting_ports(1)
        running = Running(UpOptions(manifest=manifest, port=port, grpc_port=1), tmp_path)
        exit_stack.callback(running.process.stop)
        return running

    return run


def test_server_of_garbage_never_speculates(
    run_gateway: Callable[[str], Running], garbage_server: VllmServer, plain_vllm_server: VllmServer
) -> None:
    gateway = run_gateway(two_pools(plain_vllm_server.url, garbage_server.url))
    reasons = []
    deadline = time.monotonic() + WAIT_S
    while "engine_not_lossless" not in reasons:
        assert time.monotonic() < deadline, gateway.log()
        for temperature in (0.0, 0.8):
            answer = gateway.ask(temperature)
            assert answer.headers["x-slipstream-arm"] == "plain"
            assert answer.headers["x-slipstream-draft-length"] == "0"
            reasons.append(answer.headers["x-slipstream-reason"])
    assert set(reasons) <= {"engine_unverified", "engine_not_lossless"}

    found = gateway.conformance()
    assert found["withheld"] == dict.fromkeys(("greedy_speculation", "sampled_speculation"), "engine_not_lossless")
    results = {finding["subject"]: finding["result"] for finding in found["findings"]}
    assert results == {"greedy_speculation": "fail", "sampled_speculation": "fail", "draft_length": "no_data"}

    for temperature, said in ((0.0, "greedy answers differ"), (0.8, "not the target's")):
        route = {"model": "acme", "messages": [{"role": "user", "content": PROMPT}], "temperature": temperature}
        explained = httpx.post(f"{gateway.url}/v1/route", json=route, timeout=WAIT_S).json()
        assert explained["reason"] == "engine_not_lossless"
        assert said in explained["detail"]

    labels = {"pair": "pair", "replica": "0"}
    for capability in ("greedy_speculation", "sampled_speculation"):
        assert gateway.metric("slipstream_engine_conformance", capability=capability, **labels) == 0.0
        counter = "slipstream_conformance_checks_total"
        assert gateway.metric(counter, subject=capability, result="fail") == 1.0
        assert gateway.log().count(f"{capability} is withdrawn") == 1


def test_server_that_is_not_speculating_passes_every_check(
    run_gateway: Callable[[str], Running], plain_vllm_server: VllmServer
) -> None:
    """Its answers are the target's by construction, so that a failure would be a false alarm."""
    url = plain_vllm_server.url
    gateway = run_gateway(two_pools(url, url))
    found = gateway.verdict()
    assert found["withheld"] == {}
    results = {finding["subject"]: finding["result"] for finding in found["findings"]}
    assert results["greedy_speculation"] == results["sampled_speculation"] == "pass"
    assert gateway.ask(0.8).headers["x-slipstream-arm"] == "speculative"


def test_server_with_the_plugin_keeps_both_capabilities_and_follows_draft_lengths(
    run_gateway: Callable[[str], Running], vllm_server: VllmServer
) -> None:
    gateway = run_gateway(one_pool(vllm_server.url))
    found = gateway.verdict()
    assert found["withheld"] == {}
    results = {finding["subject"]: finding["result"] for finding in found["findings"]}
    assert results == dict.fromkeys(("greedy_speculation", "sampled_speculation", "draft_length"), "pass")
    for temperature in (0.0, 0.8):
        assert gateway.ask(temperature).headers["x-slipstream-arm"] == "speculative"


def test_server_that_is_kept_from_drafting_is_checked_once_it_may(
    run_gateway: Callable[[str], Running], vllm_server: VllmServer
) -> None:
    limit = f"{vllm_server.url}/slipstream/limit"
    httpx.put(limit, json={"limit": 0}, timeout=WAIT_S).raise_for_status()
    try:
        gateway = run_gateway(one_pool(vllm_server.url))
        eventually(
            lambda: "limit" in (gateway.conformance()["waits_for"] or ""), "a wait for the limit", seen=gateway.log
        )
        answer = gateway.ask(0.0)
        assert (answer.headers["x-slipstream-arm"], answer.headers["x-slipstream-reason"]) == (
            "plain",
            "engine_unverified",
        )
        assert gateway.conformance()["checked_s"] is None
    finally:
        httpx.put(limit, json={"limit": None}, timeout=WAIT_S).raise_for_status()
    assert gateway.verdict()["withheld"] == {}
