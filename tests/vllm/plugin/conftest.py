"""The plugin inside a real vLLM: clients of the servers, and tests that run with vLLM's own Python."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest
from slipstream_tools.up.vllm_install import install_vllm
from slipstream_tools.up.vllm_server import VllmServer

from tests.vllm.plugin.client import Server
from tests.vllm.plugin.run_inside import PYTEST, Report, run_inside

REQUEST_TIMEOUT_S = 400.0

collect_ignore = ["inside", "inside_v2"]  # they run with vLLM's own Python


@pytest.fixture(scope="session")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The outcomes of `inside/` in the release of vLLM that is installed."""
    return run_inside(install_vllm(print, extra=(PYTEST,)), tmp_path_factory.mktemp("inside"))


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
    # vLLM closes a connection that was idle for 5 s, perhaps just as the next request is sent on it.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as opened:
        yield opened


@pytest.fixture
def speculative(session: aiohttp.ClientSession, vllm_server: VllmServer) -> Server:
    return Server(session, vllm_server.url)


@pytest.fixture
def plain(session: aiohttp.ClientSession, plain_vllm_server: VllmServer) -> Server:
    return Server(session, plain_vllm_server.url)
