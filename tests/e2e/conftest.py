"""`slipstream up` as a user runs it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

SLIPSTREAM = Path(sys.executable).parent / "slipstream"
PORT_OPTIONS = ("--port", "--grpc-port", "--http-port", "--metrics-port")
START_LIMIT_S = 110.0


class RunningUp:
    """A `slipstream up` that printed its commands: they, its URL, and its child processes at that time."""

    def __init__(self, process: subprocess.Popen[str], url: str, commands: list[str]) -> None:
        self.process = process
        self.url = url
        self.commands = commands
        self.children = psutil.Process(process.pid).children(recursive=True)

    def child(self, name: str) -> psutil.Process:
        """The child whose command line has `name` in it."""
        [found] = [child for child in self.children if any(name in part for part in child.cmdline())]
        return found

    def stop(self, number: int = signal.SIGINT, timeout_s: float = 40.0) -> int:
        """Send a signal, as Ctrl-C does, and return the exit code."""
        self.process.send_signal(number)
        self.process.communicate(timeout=timeout_s)
        return self.process.returncode

    def left_behind(self, timeout_s: float = 15.0) -> list[psutil.Process]:
        """Which of its children still run after `timeout_s`."""
        _, alive = psutil.wait_procs(self.children, timeout=timeout_s)
        return [child for child in alive if child.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture
def up_options(free_ports: Callable[[int], list[int]]) -> list[str]:
    """Options that put every port of `slipstream up` on a free one; the gateway's stands second."""
    ports = free_ports(len(PORT_OPTIONS))
    return [part for option, port in zip(PORT_OPTIONS, ports, strict=True) for part in (option, str(port))]


@pytest.fixture(autouse=True)
def private_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`slipstream up` makes its run folder there, so that a killed one leaves nothing outside."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))


@pytest.fixture
def start_up(up_options: list[str]) -> Iterator[Callable[..., RunningUp]]:
    """Run `slipstream up` until it has printed its commands."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> RunningUp:
        process = subprocess.Popen(
            [str(SLIPSTREAM), "up", *up_options, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        lines = _read_until_ready(process)
        commands = [line for line in lines if line.startswith("curl ")]
        return RunningUp(process, f"http://127.0.0.1:{up_options[1]}", commands)

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=40)


def _read_until_ready(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    deadline = threading.Timer(START_LIMIT_S, process.kill)
    deadline.start()
    lines = []
    try:
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if "Ctrl-C stops everything" in line:
                return lines
    finally:
        deadline.cancel()
    pytest.fail("slipstream up ended before it was ready:\n" + "\n".join(lines))
