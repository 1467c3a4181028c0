"""Networks that break, between the gateway and its servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.breaking_network import BreakingNetwork


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
