"""Worker processes: a second signal, a blocked event loop, and a supervisor that is killed."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from tests.gateway.pair_manifest import chat, manifest_text
from tests.support.gateway_process import Process, is_refused, stream, workers_of
from tests.support.polling import PATIENCE_S, eventually

# Its only request blocks the event loop.
PROGRAM = """
import socket, time, uvicorn
from slipstream_gateway.server.leaving import Leaving
from slipstream_gateway.server.supervisor import WorkerServer

async def block_the_loop(scope, receive, send):
    time.sleep(60)

listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
config = uvicorn.Config(block_the_loop, lifespan="off", log_level="warning")
WorkerServer(config, Leaving(), hang_s=2).run(sockets=[listener])
"""


def test_worker_with_a_blocked_event_loop_ends_with_its_stacks() -> None:
    child = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    port = int(child.stdout.readline())
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
        client.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        _, log = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 1
    assert "Timeout (0:00:02)!" in log
    assert "in block_the_loop" in log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("workers", [1, 2])
def test_second_signal_ends_a_gateway_that_drains_at_once(
    start: Callable[..., Process], openai_server: Callable[..., Any], number: signal.Signals, workers: int
) -> None:
    process = start(manifest_text([openai_server().url]), "--drain", "600", workers=workers)
    children = workers_of(process)
    with stream(process, chat("tokens=10000 gap=0.05")) as connection:
        assert connection.recv(1000)
        process.child.send_signal(number)
        eventually(lambda: is_refused(process), "the first signal is handled")
        with pytest.raises(subprocess.TimeoutExpired):
            process.child.wait(1.0)
        process.child.send_signal(number)
        assert process.child.wait(PATIENCE_S) == (0 if workers == 2 else -number)
    assert not any(child.is_running() for child in children)


def test_workers_end_if_the_supervisor_is_killed(
    start: Callable[..., Process], openai_server: Callable[..., Any]
) -> None:
    process = start(manifest_text([openai_server().url]), "--drain", "1", workers=2)
    workers = workers_of(process)
    process.child.kill()
    assert psutil.wait_procs(workers, timeout=PATIENCE_S)[1] == []
