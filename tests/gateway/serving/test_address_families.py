"""Listeners on `::` serve IPv4 and IPv6, and IPv4 alone on a machine without IPv6; upstreams have either address."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.pair_manifest import chat, manifest_text
from tests.support.command import SLIPSTREAM
from tests.support.gateway_process import Process, wait_live
from tests.support.polling import PATIENCE_S, eventually
from tests.support.ports import consecutive_ports

LOOPBACKS = ("127.0.0.1", "[::1]")
WITHOUT_IPV6 = (sys.executable, "-m", "tests.support.without_ipv6")
ADMIN = "/metrics"


class Listening:
    """A gateway with three listeners on every address."""

    def __init__(self, manifest: Path, ports: list[int], *options: str, before: tuple[str, ...] = ()) -> None:
        self.port, self.filter_port, self.admin_port = ports
        self._log = manifest.with_suffix(".log")
        command = [*before, *SLIPSTREAM, "gateway", "-f", str(manifest), "--allow-anonymous"]
        command += ["--host", "::", "--port", str(self.port), "--ext-proc", f"[::]:{self.filter_port}"]
        command += ["--admin-host", "::", "--admin-port", str(self.admin_port)]
        with self._log.open("w") as log:
            self.child = subprocess.Popen([*command, *options], stdout=log, stderr=log)

    def log(self) -> str:
        return self._log.read_text()

    def wait_served(self, host: str) -> None:
        """Waits until each of the three ports serves at `host`."""
        wait_live(self.child, f"http://{host}:{self.port}/health/live", f"http://{host}:{self.admin_port}{ADMIN}")
        eventually(lambda: accepts(host, self.filter_port), ignoring=ConnectionRefusedError)


def accepts(host: str, port: int) -> bool:
    socket.create_connection((host.strip("[]"), port), timeout=PATIENCE_S).close()
    return True


@pytest.fixture
def listen(tmp_path: Path, free_ports: Callable[[int], list[int]], exit_stack: ExitStack) -> Callable[..., Listening]:
    """Starts gateways; all are killed after the test."""

    def run(text: str, *options: str, **more: Any) -> Listening:
        ports = [*free_ports(2), consecutive_ports(2)[0]]
        manifest = tmp_path / f"pair-{ports[0]}.yaml"
        manifest.write_text(text)
        gateway = Listening(manifest, ports, *options, **more)
        exit_stack.callback(gateway.child.wait)
        exit_stack.callback(gateway.child.kill)
        return gateway

    return run


@pytest.mark.parametrize("workers", ["1", "2"])
def test_listeners_on_every_address_serve_both_families(
    listen: Callable[..., Listening], openai_server: Callable[..., Any], workers: str
) -> None:
    gateway = listen(manifest_text([openai_server().url]), "--workers", workers)
    for host in LOOPBACKS:
        gateway.wait_served(host)
        answer = httpx.post(f"http://{host}:{gateway.port}/v1/chat/completions", json=chat("tokens=3"))
        assert answer.status_code == httpx.codes.OK, answer.text
    assert f"http://[::]:{gateway.port}" in gateway.log()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_machine_without_ipv6_is_served_on_ipv4(
    listen: Callable[..., Listening], openai_server: Callable[..., Any], workers: str
) -> None:
    gateway = listen(manifest_text([openai_server().url]), "--workers", workers, before=WITHOUT_IPV6)
    gateway.wait_served(LOOPBACKS[0])
    answer = httpx.post(f"http://127.0.0.1:{gateway.port}/v1/chat/completions", json=chat("tokens=3"))
    assert answer.status_code == httpx.codes.OK, answer.text
    assert gateway.log().count("no IPv6") == 1
    assert f"http://0.0.0.0:{gateway.port}" in gateway.log()


def test_upstream_has_an_ipv6_address(
    listen: Callable[..., Listening], openai_server: Callable[..., Any], start: Callable[..., Process]
) -> None:
    server = listen(manifest_text([openai_server().url]))
    server.wait_served(LOOPBACKS[1])
    gateway = start(manifest_text([f"http://[::1]:{server.port}"]))
    answer = httpx.post(f"{gateway.url}/v1/chat/completions", json=chat("tokens=5"), timeout=PATIENCE_S)
    assert answer.json()["usage"]["completion_tokens"] == 5, answer.text


def test_address_in_use_is_named_with_brackets(
    listen: Callable[..., Listening], openai_server: Callable[..., Any]
) -> None:
    text = manifest_text([openai_server().url])
    first = listen(text)
    first.wait_served(LOOPBACKS[0])
    second = listen(text, "--port", str(first.port))
    assert second.child.wait(PATIENCE_S) != 0
    assert f"cannot listen on [::]:{first.port}: Address already in use" in second.log()
