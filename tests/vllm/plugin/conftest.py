"""The plugin inside a real vLLM: clients of the servers, and tests that run with vLLM's own Python."""

from __future__ import annotations

import os
import subprocess
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import aiohttp
import pytest
from slipstream_engine.embedded import TARGET_DIR
from slipstream_tools.up.vllm_install import install_vllm
from slipstream_tools.up.vllm_server import VllmServer

from tests.vllm.plugin.client import Server

INSIDE = Path(__file__).with_name("inside")
PYTEST = "pytest==9.2.0"
REQUEST_TIMEOUT_S = 400.0


class Report(NamedTuple):
    """What pytest said inside vLLM's environment. `results` are the outcomes of each file's tests by its name."""

    output: str
    results: dict[str, Counter[str]]


@pytest.fixture(scope="session")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """All files of `inside/` in one process of vLLM's Python, as this project's environment has no vLLM."""
    install = install_vllm(print, extra=(PYTEST,))
    folder = tmp_path_factory.mktemp("inside")  # vLLM would take a folder `triton` here for the package
    environment = {
        **install.environment(),
        "PYTHONPATH": str(INSIDE),
        "SLIPSTREAM_TARGET": str(TARGET_DIR),
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    command = [
        *(str(install.python), "-m", "pytest", "-c", os.devnull, "-p", "no:cacheprovider", "-q"),
        *("--rootdir", str(INSIDE), "--confcutdir", str(INSIDE), "-o", "python_files=check_*.py"),
        *("--junit-xml", str(folder / "results.xml"), str(INSIDE)),
    ]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return Report(done.stdout + done.stderr, _results(folder / "results.xml"))


def _results(file: Path) -> dict[str, Counter[str]]:
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    if file.is_file():
        for case in ElementTree.parse(file).iter("testcase"):
            [outcome] = {child.tag for child in case} - {"system-out", "system-err", "properties"} or {"passed"}
            found[f"{case.attrib['classname'].partition('.')[0]}.py"][outcome] += 1
    return dict(found)


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
