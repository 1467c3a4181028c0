"""Real vLLM servers: installed once for all runs, one speculative and one plain server for each run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from slipstream_core.manifest.vllm_command import Speculation
from slipstream_engine.embedded import DRAFT_DIR, TARGET_DIR
from slipstream_tools.up.vllm_environment import VllmInstall
from slipstream_tools.up.vllm_install import install_vllm
from slipstream_tools.up.vllm_server import VllmLaunch, VllmServer

from tests.support.ports import lasting_ports
from tests.support.preloaded_python import PreloadedPython
from tests.support.vllm_v2 import v2_environment

START_TIMEOUT_S = 600.0
DRAFT_TOKENS = 4
CONTEXT_TOKENS = 2048
TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
_FOLDER = Path(__file__).parent
_LIMIT_S = 900.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the first test the time to install vLLM, and those that start servers the time for that."""
    for item in items:
        if item.path.is_relative_to(_FOLDER) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_LIMIT_S))


@pytest.fixture(scope="session")
def vllm_install() -> VllmInstall:
    """vLLM with this tree's plugin, in the cache folder of the user; the first installation takes minutes."""
    return install_vllm(lambda line: print(line, file=sys.stderr, flush=True))


@pytest.fixture(scope="session")
def preloaded_vllm(vllm_install: VllmInstall) -> Iterator[VllmInstall]:
    """The same vLLM. Its Python has imported it already, so that servers start in seconds."""
    python = PreloadedPython(vllm_install)
    yield python.install
    python.stop()


class VllmStarter:
    """Starts servers of `install`, and waits until each one is ready. A test may stop a server; `stop` stops all."""

    def __init__(
        self, install: VllmInstall, folders: pytest.TempPathFactory, env: Mapping[str, str] | None = None
    ) -> None:
        self._install = install
        self._folders = folders
        self._env = env or {}
        self._servers: list[VllmServer] = []

    def __call__(
        self,
        speculative: bool = True,
        method: str = "draft_model",
        draft_tokens: int = DRAFT_TOKENS,
        *,
        model: str = "embedded",
        plugin: bool | None = None,
        extra: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> VllmServer:
        """`plugin=False`: stock vLLM with its own scheduler."""
        speculation = _speculation(method, draft_tokens) if speculative else None
        launch = VllmLaunch(
            model=str(TARGET_DIR) if model == "embedded" else model,
            served_name="slipstream-embedded" if model == "embedded" else model,
            speculation=speculation,
            plugin=speculative if plugin is None else plugin,
            context_tokens=CONTEXT_TOKENS,
            extra=tuple(extra),
        )
        [port] = lasting_ports(1)
        run_dir = self._folders.mktemp("vllm")
        server = VllmServer(
            install=self._install, launch=launch, run_dir=run_dir, port=port, env={**self._env, **(env or {})}
        )
        self._servers.append(server)
        server.wait_ready(timeout_s=START_TIMEOUT_S)
        return server

    def stop(self) -> None:
        for server in self._servers:
            server.stop()


@pytest.fixture(scope="session")
def start_vllm(tmp_path_factory: pytest.TempPathFactory, preloaded_vllm: VllmInstall) -> Iterator[VllmStarter]:
    """Start a server of the test's own."""
    starter = VllmStarter(preloaded_vllm, tmp_path_factory)
    yield starter
    starter.stop()


@pytest.fixture(scope="session")
def start_vllm_v2(tmp_path_factory: pytest.TempPathFactory, vllm_install: VllmInstall) -> Iterator[VllmStarter]:
    """Start a server of the test's own with vLLM's V2 model runner."""
    env = v2_environment()
    python = PreloadedPython(vllm_install, env)
    starter = VllmStarter(python.install, tmp_path_factory, env)
    yield starter
    starter.stop()
    python.stop()


def _speculation(method: str, tokens: int) -> Speculation:
    if method == "ngram":
        return Speculation(method="ngram", tokens=tokens)
    assert method == "draft_model", f"unknown method {method!r}"
    return Speculation(method="draft_model", tokens=tokens, draft=str(DRAFT_DIR))


@pytest.fixture(scope="session")
def vllm_server(start_vllm: Callable[..., VllmServer]) -> VllmServer:
    """The embedded pair with the plugin and up to `DRAFT_TOKENS` draft tokens; its model: `slipstream-embedded`."""
    return start_vllm(extra=TOOLS)


@pytest.fixture(scope="session")
def plain_vllm_server(start_vllm: Callable[..., VllmServer]) -> VllmServer:
    """The embedded target alone: no speculation, vLLM's own scheduler."""
    return start_vllm(speculative=False, extra=TOOLS)


@pytest.fixture(scope="session")
def garbage_server(start_vllm: Callable[..., VllmServer]) -> VllmServer:
    """Stock vLLM that speculates, without the plugin: its sampler is broken."""
    return start_vllm(plugin=False)
