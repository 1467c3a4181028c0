"""The real parts that tests share: Triton with the embedded pair, the gateway before it, a Kubernetes API server."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from slipstream_core.manifest import EMBEDDED_MANIFEST, load_file
from slipstream_tools.up.gateway_process import GatewayProcess
from slipstream_tools.up.model_repository import write_repository
from slipstream_tools.up.options import UpOptions
from slipstream_tools.up.servers import local_pairs
from slipstream_tools.up.triton_server import TritonPorts, TritonServer

from tests.support import rings, shards, times
from tests.support.http_trust import share_default_context
from tests.support.kinds import Kinds
from tests.support.kube import CRDS, KubeApiServer, install_chart
from tests.support.ports import lasting_ports
from tests.support.scheduling import Scheduling
from tests.support.speed import TimeLimits
from tests.support.stacks import HungTests

if TYPE_CHECKING:
    from tests.support.redis_server import RedisServer

START_TIMEOUT_S = 90.0

_GPU_DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


def _has_gpu() -> bool:
    """Whether PyTorch finds a GPU. PyTorch is imported only where the kernel has a GPU's driver: the import takes
    seconds, and most tests need no PyTorch."""
    if not any(Path(device).exists() for device in _GPU_DEVICES):
        return False
    import torch

    return torch.cuda.is_available()


if not _has_gpu():
    # Kernels run in the interpreter then. The kernel language reads this once, when anything first imports it: other
    # packages do, so this cannot wait for the kernels' own tests.
    os.environ["TRITON_INTERPRET"] = "1"

# A shell that starts the suite in the background ignores Ctrl-C, and so would all processes that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Processes that tests start find `sitecustomize` there.
_CHILD_STARTUP = str(Path(__file__).parent / "support" / "child_startup")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_CHILD_STARTUP, os.environ.get("PYTHONPATH"))))

# How long an example takes is a matter of how busy the machine is. All else stays as Hypothesis' own profiles have it:
# the same examples each time where CI is set, new ones in each run elsewhere.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


share_default_context()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--unit", action="store_true", help="only unit tests: no process, no socket, no PyTorch")
    parser.addoption("--times", action="store_true", help="print where the minutes went: files, tests, fixtures")
    parser.addoption(
        "--shard", metavar="N/COUNT", help="a part of the test files, such as 2/3, for one of several machines"
    )
    parser.addoption("--slow-quarter", metavar="N", help="a quarter of the slow tests: 1 to 4, or commit")
    parser.addoption("--engine-url", metavar="URL", help="the engine of tests/contract, instead of Slipstream's own")
    parser.addoption("--slow-seconds", metavar="S", type=float, help="skip the slow tests that begin later")
    parser.addoption("--record", action="store_true", help="record in tests/slow_ring.tsv which slow tests passed")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Kinds(only_unit=config.getoption("unit")))
    config.pluginmanager.register(Scheduling())
    rings.register(config)
    shards.register(config)
    config.pluginmanager.register(TimeLimits())
    config.pluginmanager.register(HungTests())
    if config.getoption("times"):
        times.register(config)


@pytest.fixture
def exit_stack() -> Iterator[ExitStack]:
    """Closes after the test what other fixtures opened, the last one first."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
async def async_exit_stack() -> AsyncIterator[AsyncExitStack]:
    """Closes after the test what other fixtures opened in its event loop, the last one first."""
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture(scope="session")
def free_ports() -> Callable[[int], list[int]]:
    return lasting_ports


@pytest.fixture(scope="session")
def start_triton() -> Callable[[Path, TritonPorts], TritonServer]:
    """Start a Triton of the test's own with the embedded pair, and wait until it is ready; the test stops it."""

    def start(run_dir: Path, ports: TritonPorts) -> TritonServer:
        table = load_file(EMBEDDED_MANIFEST)
        repository = write_repository(
            local_pairs(table), manifest_folder=table.folder, folder=run_dir / "model_repository"
        )
        server = TritonServer(model_repository=repository, run_dir=run_dir, ports=ports)
        try:
            server.wait_ready(timeout_s=START_TIMEOUT_S)
        except BaseException:
            server.stop()
            raise
        return server

    return start


@pytest.fixture(scope="session")
def triton_server(
    tmp_path_factory: pytest.TempPathFactory, start_triton: Callable[[Path, TritonPorts], TritonServer]
) -> Iterator[TritonServer]:
    """The Triton of this run, with the embedded pair as its model `embedded`. Its log: `.child.log_path`."""
    grpc, http, metrics = lasting_ports(3)
    ports = TritonPorts(grpc=grpc, http=http, metrics=metrics)
    server = start_triton(tmp_path_factory.mktemp("triton"), ports)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def triton_endpoint(triton_server: TritonServer) -> str:
    """`host:port` of its gRPC service."""
    return f"{triton_server.ports.host}:{triton_server.ports.grpc}"


@pytest.fixture(scope="session")
def gateway_url(tmp_path_factory: pytest.TempPathFactory, triton_server: TritonServer) -> Iterator[str]:
    """A real `slipstream gateway` in front of this run's Triton: `http://host:port`."""
    [port] = lasting_ports(1)
    options = UpOptions(port=port, grpc_port=triton_server.ports.grpc)
    gateway = GatewayProcess(options=options, run_dir=tmp_path_factory.mktemp("gateway"))
    try:
        gateway.wait_ready(timeout_s=START_TIMEOUT_S)
        yield options.url
    finally:
        gateway.stop()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis of this test's own. Its client is imported here: the import takes a second, and few tests need it."""
    from tests.support.redis_server import RedisServer

    (folder := tmp_path / "redis").mkdir()
    server = RedisServer(folder, lasting_ports(1)[0])
    yield server
    server.stop()


@pytest.fixture(scope="session")
def kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApiServer]:
    """The Kubernetes API server of this run. Whoever stops or halts it starts one of its own instead."""
    with KubeApiServer(tmp_path_factory.mktemp("kube")) as server:
        yield server


@pytest.fixture
def namespace(kube: KubeApiServer) -> str:
    """A namespace of this test's own."""
    return kube.namespace(f"test-{uuid.uuid4().hex[:10]}")


@pytest.fixture(scope="session")
def install_crds() -> Callable[[KubeApiServer], None]:
    """Bring our kinds to an API server, and wait until it serves them."""
    return lambda server: install_chart(server, CRDS)


@pytest.fixture(scope="session")
def crds(kube: KubeApiServer, install_crds: Callable[[KubeApiServer], None]) -> None:
    """Our kinds, in this run's API server."""
    install_crds(kube)
