"""The fleet of a manifest: the manifest's own routing table, live replicas."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from slipstream_core.manifest import compile_table, parse
from slipstream_core.settings import Deadlines, GatewaySettings
from slipstream_gateway.app.app import connect
from slipstream_gateway.fleet.fleet import Fleet
from slipstream_gateway.fleet.snapshot import ServedRoute


class Bench:
    def __init__(self, text: str) -> None:
        settings = GatewaySettings(manifest=Path(), deadlines=Deadlines(connect_s=2.0))
        self.fleet = Fleet(lambda key: connect(key, settings), clock=time.monotonic)
        self.fleet.swap(compile_table(parse(text)))

    @property
    def served(self) -> ServedRoute:
        return next(iter(self.fleet.current.routes.values()))


@pytest.fixture
async def bench(async_exit_stack: AsyncExitStack) -> Callable[[str], Bench]:
    """Makes fleets; all are closed after the test."""

    def make(text: str) -> Bench:
        made = Bench(text)
        async_exit_stack.push_async_callback(made.fleet.aclose)
        return made

    return make
