"""A Triton that does not start: the error names the reason. One that a busy machine ended is started again."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from slipstream_core.errors import CommandError
from slipstream_core.manifest import EMBEDDED_MANIFEST, load_file
from slipstream_tools.up.model_repository import write_repository
from slipstream_tools.up.servers import local_pairs
from slipstream_tools.up.triton_server import TritonPorts, TritonServer

from tests.support.polling import eventually

START_S = 90.0
STARVED_S = 3.0  # Triton's limit is one second


@pytest.fixture
def ports(free_ports: Callable[[int], list[int]]) -> TritonPorts:
    grpc, http, metrics = free_ports(3)
    return TritonPorts(grpc=grpc, http=http, metrics=metrics)


@pytest.fixture
def start(tmp_path: Path, ports: TritonPorts, exit_stack: ExitStack) -> Callable[[], TritonServer]:
    def start() -> TritonServer:
        table = load_file(EMBEDDED_MANIFEST)
        repository = write_repository(
            local_pairs(table), manifest_folder=table.folder, folder=tmp_path / "model_repository"
        )
        server = TritonServer(model_repository=repository, run_dir=tmp_path, ports=ports)
        exit_stack.callback(server.stop)
        return server

    return start


def test_a_server_that_was_starved_is_started_again(start: Callable[[], TritonServer]) -> None:
    server = start()
    first = server.child.pid
    loading = eventually(lambda: process_that_loads_pytorch(first), "the model's process loads", within_s=START_S)
    loading.suspend()
    time.sleep(STARVED_S)
    loading.resume()
    assert server.wait_ready(timeout_s=START_S)
    assert server.child.pid != first
    log = server.child.log_path.read_text()
    assert "lock_exception" in log or "Triton has given up this model" in log
    assert not psutil.pid_exists(loading.pid)


def test_a_port_in_use_is_the_reason(start: Callable[[], TritonServer], ports: TritonPorts) -> None:
    with socket.socket() as other:
        other.bind((ports.host, ports.http))
        other.listen()
        with pytest.raises(CommandError) as failed:
            start().wait_ready(timeout_s=START_S)
    assert str(failed.value) == (
        "Triton exited with code 1 while starting: failed to start HTTP service: "
        f"Unavailable - Socket '{ports.host}:{ports.http}' already in use"
    )


def process_that_loads_pytorch(pid: int) -> psutil.Process | None:
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if any("libtorch" in mapped.path for mapped in process.memory_maps()):
                return process
        except psutil.Error:  # it has ended or is starting
            continue
    return None
