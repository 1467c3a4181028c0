"""`slipstream up` as a user runs it."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.support.command import SCRIPT, arguments_of

START_LIMIT_S = 600.0  # vLLM on a busy machine


class RunningUp:
    """A `slipstream up` that printed its commands: they, its URL, and its child processes at the last look."""

    def __init__(self, process: subprocess.Popen[str], url: str, commands: list[str]) -> None:
        self.process = process
        self.url = url
        self.commands = commands
        self.look()

    def look(self) -> None:
        """Its child processes are those of this moment."""
        self.children = psutil.Process(self.process.pid).children(recursive=True)

    def child(self, name: str) -> psutil.Process:
        """The child whose command line has `name` in it."""
        [found] = [child for child in self.children if any(name in part for part in arguments_of(child))]
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
    """The option that puts the gateway of `slipstream up` on a free port; the servers behind it find their own."""
    return ["--port", str(free_ports(1)[0])]


@pytest.fixture(autouse=True)
def private_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`slipstream up` makes its run folder there, so that a killed one leaves nothing outside."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))


@pytest.fixture
def start_up(free_ports: Callable[[int], list[int]], exit_stack: ExitStack) -> Callable[..., RunningUp]:
    """Run `slipstream up` until it has printed its commands; each has a port of its own."""

    def start(*arguments: str, script: str = SCRIPT) -> RunningUp:
        [port] = free_ports(1)
        process = subprocess.Popen(
            [script, "up", "--port", str(port), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        exit_stack.callback(process.communicate, timeout=40)
        exit_stack.callback(process.terminate)
        lines = _read_until_ready(process)
        commands = [line for line in lines if line.startswith("curl ")]
        return RunningUp(process, f"http://127.0.0.1:{port}", commands)

    return start


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
