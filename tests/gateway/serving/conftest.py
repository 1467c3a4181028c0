"""Gateways as processes, and networks that break between them and their servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.breaking_network import BreakingNetwork
from tests.support.gateway_process import Process


@pytest.fixture(scope="module")
def breaking_network() -> Iterator[Callable[..., BreakingNetwork]]:
    """Makes networks to a server at `host:port`; all are stopped after the module."""
    made: list[BreakingNetwork] = []

    def make(endpoint: str, addresses: int = 2) -> BreakingNetwork:
        host, _, port = endpoint.rpartition(":")
        made.append(BreakingNetwork(host, int(port), addresses))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def start(tmp_path: Path, free_ports: Callable[[int], list[int]]) -> Iterator[Callable[..., Process]]:
    """Starts gateways for a manifest's text and waits for them; all are killed after the test."""
    processes: list[Process] = []

    def run(text: str, *options: str, **more: Any) -> Process:
        manifest = tmp_path / "pair.yaml"
        manifest.write_text(text)
        processes.append(Process(manifest, free_ports(1)[0], *options, **more))
        processes[-1].wait_live()
        return processes[-1]

    yield run
    for process in processes:
        process.child.kill()
        process.child.communicate()
