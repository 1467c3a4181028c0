"""vLLM with the embedded pair inside a real Triton, and a gateway before it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from slipstream_core.errors import CommandError
from slipstream_core.manifest import load_file
from slipstream_tools.up.engine_checks import wait_checked
from slipstream_tools.up.gateway_process import GatewayProcess
from slipstream_tools.up.model_repository import write_repository
from slipstream_tools.up.options import UpOptions
from slipstream_tools.up.servers import local_pairs
from slipstream_tools.up.triton_server import TritonPorts, TritonServer
from slipstream_tools.up.vllm_environment import VllmInstall

from tests.contract.engine_client import Engine
from tests.support.manifests import EMBEDDED, pair_yaml
from tests.support.pipe_transport import PipeTransport
from tests.support.ports import lasting_ports
from tests.support.stacks import stacks_of_children

START_TIMEOUT_S = 600.0
CHECKED_S = 600.0
ANSWERED_S = 300.0
MODEL = "embedded"
ARGUMENTS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
PAIR = pair_yaml(
    "{kind: vllm, serving: triton}",
    *EMBEDDED,
    "maxDraftTokens: 4",
    name="embedded",
    model="slipstream-embedded",
    policy=", allowClientMode: true, decision: expected",
)


class Repository(NamedTuple):
    """A Triton model repository for `manifest`, with `stub`, the environment of the model's stub."""

    manifest: Path
    models: Path
    stub: Path


@pytest.fixture(scope="session")
def write_vllm_repository(preloaded_vllm: VllmInstall) -> Callable[..., Repository]:
    """Write the repository of `PAIR` into a folder, as `slipstream up` does, with `more` options of vLLM. Without an
    `install`, the processes that vLLM starts from the model's stub are forked from one that has imported it."""

    def write(folder: Path, *more: str, install: VllmInstall = preloaded_vllm) -> Repository:
        manifest = folder / "pair.yaml"
        manifest.write_text(PAIR, encoding="utf-8")
        models = write_repository(
            local_pairs(load_file(manifest)),
            manifest_folder=folder,
            folder=folder / "models",
            vllm=install,
            vllm_arguments=(*ARGUMENTS, *more),
        )
        return Repository(manifest, models, folder / "vllm_stub")

    return write


@contextmanager
def ready(server: TritonServer) -> Iterator[TritonServer]:
    """A started server once it is ready, until the end of the context."""
    try:
        try:
            server.wait_ready(timeout_s=START_TIMEOUT_S)
        except CommandError as exc:
            pytest.fail(f"{exc}\n{stacks_of_children()}")
        yield server
    finally:
        server.stop()


@asynccontextmanager
async def model_of(server: TritonServer) -> AsyncIterator[Engine]:
    """A client of its model `MODEL`."""
    transport = PipeTransport(f"{server.ports.host}:{server.ports.grpc}", MODEL)
    async with httpx.AsyncClient(base_url="http://triton", transport=transport, timeout=ANSWERED_S) as http:
        yield await Engine.of(http)


@pytest.fixture(scope="session")
def run_triton() -> Callable[[Path, Path], TritonServer]:
    """Start a Triton for a model repository; whoever calls it waits for it and stops it."""

    def run(models: Path, run_dir: Path) -> TritonServer:
        grpc, http, metrics = lasting_ports(3)
        with pytest.MonkeyPatch.context() as environment:
            environment.delenv("PYTHONPATH", raising=False)  # our modules are not for the processes that vLLM starts
            return TritonServer(
                model_repository=models,
                run_dir=run_dir,
                ports=TritonPorts(grpc=grpc, http=http, metrics=metrics),
            )

    return run


@pytest.fixture(scope="session")
def vllm_triton(
    tmp_path_factory: pytest.TempPathFactory,
    write_vllm_repository: Callable[[Path], Repository],
    run_triton: Callable[[Path, Path], TritonServer],
) -> Iterator[TritonServer]:
    """The Triton of this run that serves the embedded pair by vLLM, as its model `MODEL`."""
    folder = tmp_path_factory.mktemp("vllm-triton")
    with ready(run_triton(write_vllm_repository(folder).models, folder)) as server:
        yield server


@pytest.fixture
async def vllm_model(vllm_triton: TritonServer) -> AsyncIterator[Engine]:
    async with model_of(vllm_triton) as model:
        yield model


@pytest.fixture(scope="session")
def vllm_triton_gateway(tmp_path_factory: pytest.TempPathFactory, vllm_triton: TritonServer) -> Iterator[str]:
    """A real gateway before it: `http://host:port`."""
    folder = tmp_path_factory.mktemp("vllm-triton-gateway")
    manifest = folder / "pair.yaml"
    manifest.write_text(PAIR, encoding="utf-8")
    [port] = lasting_ports(1)
    options = UpOptions(manifest=manifest, port=port, grpc_port=vllm_triton.ports.grpc)
    gateway = GatewayProcess(options=options, run_dir=folder)
    try:
        gateway.wait_ready(timeout_s=90.0)
        # Nothing speculates before.
        wait_checked(gateway, workers=1, timeout_s=CHECKED_S, report=print, stopping=lambda: False)
        yield options.url
    finally:
        gateway.stop()
