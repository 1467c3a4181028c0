"""A server whose sampler is broken, for all tests of conformance."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from slipstream_tools.up.vllm_server import VllmServer


@pytest.fixture(scope="package")
def garbage_server(start_vllm: Callable[..., VllmServer]) -> Iterator[VllmServer]:
    """Stock vLLM that speculates, without the plugin."""
    server = start_vllm(plugin=False)
    yield server
    server.stop()
