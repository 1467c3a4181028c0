"""A model's process notices Triton's shutdown by the socket that Triton closes first."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from slipstream_engine.pipe.shutdown import ShutdownWatch

from tests.support.polling import PATIENCE_S
from tests.support.ports import lasting_ports

# In place of Triton. After each line of its input it goes on: it listens on a port, then no longer.
TRITON = """
import socket, sys
host, port = sys.argv[1:3]
print("loads", flush=True)
sys.stdin.readline()
with socket.create_server((host, int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
    print("listens", flush=True)
    sys.stdin.readline()
print("shuts down", flush=True)
sys.stdin.readline()
"""


class Triton:
    """A process in place of Triton, with its watch at a time that the test sets."""

    def __init__(self, host: str, port: int, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", TRITON, host, str(port), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._expect("loads")
        self._now_s = 0.0
        self._watch = ShutdownWatch(self.process.pid, clock=lambda: self._now_s)

    def go_on(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self._expect(line)

    def is_due_at(self, now_s: float) -> bool:
        self._now_s = now_s
        return self._watch.is_due()

    def _expect(self, line: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == line


@pytest.fixture(params=["equals", "space", "ipv6", "defaults"])
def triton(request: pytest.FixtureRequest) -> Iterator[tuple[Triton, float]]:
    """With its exit time-out in seconds."""
    [port] = lasting_ports(1)
    host, arguments, timeout_s = {
        "equals": ("127.0.0.1", (f"--http-port={port}", "--exit-timeout-secs=7"), 7.0),
        "space": ("127.0.0.1", ("--http-port", str(port), "--exit-timeout-secs", "12"), 12.0),
        "ipv6": ("::1", (f"--http-port={port}", "--http-address=ipv6:::", "--exit-timeout-secs=7"), 7.0),
        "defaults": ("127.0.0.1", (f"--http-port={port}", "--http-address=127.0.0.1"), 30.0),
    }[request.param]
    started = Triton(host, port, *arguments)
    yield started, timeout_s
    started.process.communicate("\n\n\n", timeout=PATIENCE_S)


def test_it_is_due_before_triton_gives_up_waiting(triton: tuple[Triton, float]) -> None:
    process, timeout_s = triton
    assert not process.is_due_at(0.0)
    assert not process.is_due_at(1000.0), "Triton does not listen while it loads models"
    process.go_on("listens")
    assert not process.is_due_at(2000.0)
    process.go_on("shuts down")
    assert not process.is_due_at(2001.0)
    assert not process.is_due_at(2001.0 + timeout_s - 3.1)
    assert process.is_due_at(2001.0 + timeout_s - 3.0)
    assert process.is_due_at(2001.0 + timeout_s)
