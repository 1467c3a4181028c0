"""Scripted engines, and parity in front of servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from tests.gateway.lossless.parity_bench import Bench
from tests.gateway.lossless.scripted_engine import ScriptedEngine


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    started = ScriptedEngine()
    yield started
    started.stop()


@pytest.fixture
async def bench() -> AsyncIterator[Callable[..., Bench]]:
    """Makes benches; all are closed after the test."""
    made: list[Bench] = []

    def make(text: str, **options: Any) -> Bench:
        made.append(Bench(text, **options))
        return made[-1]

    yield make
    for one in made:
        await one.parity.aclose()
        await one.fleet.aclose()
