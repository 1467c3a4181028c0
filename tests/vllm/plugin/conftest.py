"""The plugin inside a real vLLM: clients of the servers, and tests that run with vLLM's own Python."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest
from slipstream_engine.embedded import TARGET_DIR
from slipstream_gateway.up.vllm_install import install_vllm
from slipstream_gateway.up.vllm_server import VllmServer

from tests.vllm.plugin.client import Server

INSIDE = Path(__file__).with_name("inside")
PYTEST = "pytest==9.2.0"
REQUEST_TIMEOUT_S = 400.0


class Report(NamedTuple):
    """What pytest said inside vLLM's environment."""

    status: int
    output: str


@pytest.fixture(scope="session")
def run_inside(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Report]:
    """Run a file of `inside/` with vLLM's Python: this project's environment has no vLLM."""
    install = install_vllm(print, extra=(PYTEST,))
    folder = tmp_path_factory.mktemp("inside")  # vLLM would take a folder `triton` here for the package

    def run(file: str) -> Report:
        environment = {
            **install.environment(),
            "PYTHONPATH": str(INSIDE),
            "SLIPSTREAM_TARGET": str(TARGET_DIR),
            "VLLM_LOGGING_LEVEL": "ERROR",
        }
        command = [
            *(str(install.python), "-m", "pytest", "-c", os.devnull, "-p", "no:cacheprovider", "-q", "-rA"),
            *("--rootdir", str(INSIDE), "--confcutdir", str(INSIDE), "-o", "python_files=check_*.py"),
            str(INSIDE / file),
        ]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        return Report(done.returncode, done.stdout + done.stderr)

    return run


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as opened:
        yield opened


@pytest.fixture
def speculative(session: aiohttp.ClientSession, vllm_server: VllmServer) -> Server:
    return Server(session, vllm_server.url)


@pytest.fixture
def plain(session: aiohttp.ClientSession, plain_vllm_server: VllmServer) -> Server:
    return Server(session, plain_vllm_server.url)
