"""Gateways as processes, and networks that break between them and their servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.breaking_network import BreakingNetwork
from tests.support.gateway_process import Process


@pytest.fixture(scope="module")
def breaking_network() -> Iterator[Callable[..., BreakingNetwork]]:
    """Makes networks to a server at `host:port` of the loopback; all are stopped after the module."""
    with ExitStack() as stack:

        def make(endpoint: str, addresses: int = 2) -> BreakingNetwork:
            return stack.enter_context(BreakingNetwork(int(endpoint.rpartition(":")[2]), addresses))

        yield make


@pytest.fixture
def start(tmp_path: Path, free_ports: Callable[[int], list[int]], exit_stack: ExitStack) -> Callable[..., Process]:
    """Starts gateways for a manifest's text and waits for them; all are killed after the test."""

    def run(text: str, *options: str, **more: Any) -> Process:
        manifest = tmp_path / "pair.yaml"
        manifest.write_text(text)
        process = Process(manifest, free_ports(1)[0], *options, **more)
        exit_stack.callback(process.child.communicate)
        exit_stack.callback(process.child.kill)
        process.wait_live()
        return process

    return run
