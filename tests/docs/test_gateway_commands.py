"""Commands of the documentation on one machine: a real gateway before the embedded pair, or before scripted servers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import httpx
import pytest

from tests.docs.shell import Shell, until
from tests.gateway.openai_server import OpenAiServer
from tests.support.doc_blocks import Block, find, runs, runs_each
from tests.support.manifests import arm, external, pair_yaml
from tests.support.redis_server import RedisServer

ADDRESS = "http://127.0.0.1:8080"
TWO_POOLS = "apiVersion: slipstream.dev/v1alpha1\nkind: ModelPair\nmetadata: {name: llama}\nspec:\n  model: llama-70b"
PORTS = Callable[[int], list[int]]
ASKED = {"model": "support-8b", "messages": [{"role": "user", "content": "tokens=3"}]}


@pytest.fixture
def servers(shell: Shell, exit_stack: ExitStack) -> list[OpenAiServer]:
    """One for each arm of the pair in `pair.yaml`."""
    found = [exit_stack.enter_context(OpenAiServer()) for _ in range(2)]
    engine = external(*(arm(server.url, model="support-8b") for server in found))
    manifest = pair_yaml(engine, name="support", model="support-8b", policy=", allowClientMode: true")
    (shell.folder / "pair.yaml").write_text(manifest, encoding="utf-8")
    return found


def post(url: str, body: dict[str, Any] | None = None, **headers: str) -> httpx.Response:
    return httpx.post(f"{url}/v1/chat/completions", json=body or ASKED, headers=headers, timeout=60)


@runs("docs/tutorial/cluster.md", "curl -i")
def test_requests_say_what_was_decided(blocks: list[Block], shell: Shell, gateway_url: str) -> None:
    printed = shell.run(blocks[0], {ADDRESS: gateway_url})
    for header in ("arm", "class", "reason", "draft-length"):
        assert f"x-slipstream-{header}: " in printed
    assert "x-slipstream-class: summarization/" in printed


@runs("docs/howto/verification.md", "from slipstream_kernels")
def test_verification_on_its_own(blocks: list[Block], shell: Shell) -> None:
    given = """
import torch
device = "cpu"
target_logits = torch.randn(7, 64)
draft_token_ids, draft_lengths = torch.randint(32, (2, 3)), torch.tensor([3, 2])
positions = torch.tensor([5, 9])
"""
    assert _python(given + blocks[0].text + "print(step.token_ids.shape)", shell) == "torch.Size([2, 4])\n"


def _python(code: str, shell: Shell) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=shell.environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@runs("docs/howto/engines.md", "slipstream gateway")
def test_gateway_with_workers_serves_the_manifest_above(
    blocks: list[Block], shell: Shell, servers: list[OpenAiServer], free_ports: PORTS
) -> None:
    manifest = find("docs/howto/engines.md", TWO_POOLS).text
    for address, server in (("plain-0", 0), ("plain-1", 0), ("spec-0", 1)):
        manifest = manifest.replace(f"http://{address}:8000", servers[server].url)
    (shell.folder / "pair.yaml").write_text(manifest.replace(f', "{servers[0].url}"', ""), encoding="utf-8")
    shell.environment["SPEC_API_KEY"] = "a-key"
    [port] = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with shell.serving(
        blocks[0], {"--workers 4 --admin-port 9190": f"--workers 4 --admin-port 0 --port {port}"}, url=url
    ):
        assert post(url, {**ASKED, "model": "llama-70b"}).status_code == 200


@runs_each(
    ("docs/access.md", "slipstream keys create -f keys.json --name ci --requests"),
    ("docs/access.md", "slipstream keys create -f keys.json --name ci --model"),
)
def test_gateway_with_keys_asks_for_one(
    block: Block, shell: Shell, servers: list[OpenAiServer], redis: RedisServer, free_ports: PORTS
) -> None:
    port, admin = free_ports(2)
    url = f"http://127.0.0.1:{port}"
    replaced = {"--host ::": f"--host 127.0.0.1 --port {port}"}
    if "--redis" in block.text:
        replaced |= {"redis://cache:6379/0": redis.url, "--admin-port 8081": f"--admin-port {admin}"}
    with shell.serving(block, replaced, url=url):
        log = (shell.folder / "serving.log").read_text()
        [key] = [word for word in log.split() if word.startswith("sk-slip-")]
        assert post(url).status_code == 401
        assert post(url, authorization=f"Bearer {key}").status_code == 200


@runs("docs/state.md", "slipstream gateway")
def test_gateways_share_over_redis(
    blocks: list[Block], shell: Shell, servers: list[OpenAiServer], redis: RedisServer, free_ports: PORTS
) -> None:
    plain, secret = blocks[0].commands
    assert "rediss://:password@cache:6380/0" in secret
    for command in (plain, secret.replace("rediss://:password@cache:6380/0", "redis://cache:6379/0")):
        [port] = free_ports(1)
        url = f"http://127.0.0.1:{port}"
        one = blocks[0]._replace(text=command)
        with shell.serving(one, {"redis://cache:6379/0": redis.url, "-f pair": f"--port {port} -f pair"}, url=url):
            until(partial(is_connected, url))


@runs("docs/capture.md", "slipstream gateway", "slipstream drafts")
def test_answers_are_captured_exported_and_forgotten(
    blocks: list[Block], shell: Shell, servers: list[OpenAiServer], free_ports: PORTS
) -> None:
    serve, use = blocks
    manifest = (shell.folder / "pair.yaml").read_text(encoding="utf-8")
    captured = manifest.replace("allowClientMode: true", "capture: {share: 1}")
    (shell.folder / "support.yaml").write_text(captured, encoding="utf-8")
    [port] = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with shell.serving(serve, {"-f support": f"--port {port} -f support"}, url=url):
        assert post(url).status_code == 200
    assert "support" in shell.run(use, {"--key k-payroll": "--before 2999-01-01"})  # the request had no key
    [line] = (shell.folder / "answers.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["conversations"][0] == ASKED["messages"][0]


def is_connected(url: str) -> bool:
    metrics = httpx.get(f"{url}/metrics", timeout=30).text
    return re.search(r"^slipstream_store_connected\S* 1(\.0)?$", metrics, re.MULTILINE) is not None


@runs("docs/howto/console.md", "curl -X POST")
def test_kill_of_the_console_is_set_and_taken_back(
    blocks: list[Block], shell: Shell, servers: list[OpenAiServer], free_ports: PORTS
) -> None:
    [port] = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    start = blocks[0]._replace(text=f"slipstream gateway -f pair.yaml --port {port}")
    kill, unkill = (blocks[0]._replace(text=command) for command in blocks[0].commands)
    with shell.serving(start, {}, url=url):
        shell.run(kill, {ADDRESS: url, "curl": "curl --fail"})
        until(lambda: post(url).headers["x-slipstream-reason"] == "kill_switch")
        shell.run(unkill, {ADDRESS: url, "curl": "curl --fail"})
        until(lambda: post(url).headers["x-slipstream-reason"] != "kill_switch")


@runs("docs/tutorial/own-pair.md", "slipstream up -f")
def test_up_serves_a_manifest(
    blocks: list[Block], shell: Shell, servers: list[OpenAiServer], free_ports: PORTS
) -> None:
    """A pair of servers elsewhere: tests/e2e start Triton."""
    [port] = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with shell.serving(blocks[0], {"pair.yaml": f"pair.yaml --port {port}"}, url=url):
        assert post(url).status_code == 200


@runs("docs/bench.md", "slipstream bench -f")
def test_bench_measures_and_replay_reads_it(blocks: list[Block], shell: Shell, servers: list[OpenAiServer]) -> None:
    write_calls(shell)
    policy = (shell.folder / "pair.yaml").read_text(encoding="utf-8").partition("---\n")[2]
    (shell.folder / "cautious.yaml").write_text(policy, encoding="utf-8")
    shell.run(blocks[0])
    assert all(server.requests for server in servers)


@runs("docs/tutorial/own-pair.md", "slipstream bench")
def test_bench_writes_a_report(blocks: list[Block], shell: Shell, servers: list[OpenAiServer]) -> None:
    write_calls(shell)
    shell.run(blocks[0])
    assert (shell.folder / "report" / "report.html").exists()


def write_calls(shell: Shell) -> None:
    bodies = (
        {"messages": [{"role": "user", "content": f"tokens={4 + index}"}], "temperature": 0} for index in range(3)
    )
    (shell.folder / "calls.jsonl").write_text("".join(json.dumps(body) + "\n" for body in bodies), encoding="utf-8")
