"""The engines of the contract suite. With `--engine-url` it runs against that engine alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from slipstream_tools.up.vllm_environment import VllmInstall
from slipstream_tools.up.vllm_install import install_vllm

from tests.contract.engine_client import TIMEOUT_S, Engine
from tests.contract.pipe_server import EMBEDDED, MODEL, piped, vllm_parameters
from tests.support.gateway_process import wait_live
from tests.support.pipe_transport import PipeTransport
from tests.support.polling import PATIENCE_S
from tests.support.ports import lasting_ports
from tests.support.preloaded_python import PreloadedPython
from tests.vllm.conftest import VllmStarter

ENGINES = (
    "embedded",
    "embedded_in_triton",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("vllm", "vllm_in_triton")),
)
_LIMIT_S = 900.0
_TRITON = "triton://"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine_name" in metafunc.fixturenames:
        url = metafunc.config.getoption("engine_url")
        metafunc.parametrize("engine_name", [url] if url else ENGINES, scope="session")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "engine_name" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(_LIMIT_S))  # the first one starts the engine


@pytest.fixture(scope="session")
def embedded() -> Iterator[str]:
    """The embedded pair as an application of its own."""
    [port] = lasting_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "slipstream_engine.openai", "--port", str(port), "--set", "threads=1"]
    child = subprocess.Popen(command)
    try:
        wait_live(child, f"{url}/health")
        yield url
    finally:
        child.terminate()
        child.wait(PATIENCE_S)


@pytest.fixture(scope="session")
def preloaded() -> Iterator[VllmInstall]:
    """vLLM with a Python that has imported it already."""
    python = PreloadedPython(install_vllm(print))
    yield python.install
    python.stop()


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory, preloaded: VllmInstall) -> Iterator[str]:
    """vLLM with the plugin."""
    starter = VllmStarter(preloaded, tmp_path_factory)
    yield starter().url
    starter.stop()


@pytest.fixture(scope="session")
def embedded_in_triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with piped(tmp_path_factory.mktemp("piped"), EMBEDDED) as address:
        yield _TRITON + address


@pytest.fixture(scope="session")
def vllm_in_triton(tmp_path_factory: pytest.TempPathFactory, preloaded: VllmInstall) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("piped")
    with piped(folder, vllm_parameters(preloaded, folder)) as address:
        yield _TRITON + address


@pytest.fixture(scope="session")
def engine_url(request: pytest.FixtureRequest, engine_name: str) -> str:
    """`http://…` of an application, or `triton://host:port` of a pipe's gRPC port."""
    return engine_name if "://" in engine_name else str(request.getfixturevalue(engine_name))


@pytest.fixture
async def engine(engine_url: str) -> AsyncIterator[Engine]:
    is_piped = engine_url.startswith(_TRITON)
    transport = PipeTransport(engine_url.removeprefix(_TRITON), MODEL) if is_piped else None
    base_url = "http://triton" if is_piped else engine_url
    async with httpx.AsyncClient(base_url=base_url, transport=transport, timeout=TIMEOUT_S) as http:
        yield await Engine.of(http)
