"""A process of `slipstream up` that ends is started again, with pauses, and given up only if it cannot start."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from slipstream_core.errors import CommandError
from slipstream_tools.up.processes import Child
from slipstream_tools.up.server import Server
from slipstream_tools.up.supervisor import MAX_FAILED_STARTS, STABLE_S, Supervisor

from tests.support.command import has_ended
from tests.support.polling import eventually

pytestmark = pytest.mark.integration

START_LIMIT_S = 30.0
# Serves until the folder has a file `broken`; a child of its own is in its group.
SERVER = "echo start; test -e broken && { echo the model is broken; exit 3; }; sleep 300 & echo $! > child; wait"


class Program(Server):
    """A program that is up as soon as it runs, unless told otherwise."""

    def __init__(self, folder: Path) -> None:
        super().__init__(health_url="")
        command = ["sh", "-c", SERVER]
        self.child = Child(name="the server", command=command, log_path=folder / "log", env=os.environ, cwd=folder)
        self.can_be_up = True

    def is_up(self) -> bool:
        return self.can_be_up and self.child.exit_status() is None

    def kill(self) -> None:
        os.kill(self.child.pid, signal.SIGKILL)
        assert self.child.wait(10.0)


class Supervised:
    """A supervisor whose clock the test moves."""

    def __init__(self, folder: Path) -> None:
        self.server = Program(folder)
        self.now_s = 0.0
        self.lines: list[str] = []
        self.supervisor = Supervisor(
            self.server, start_limit_s=START_LIMIT_S, report=self.lines.append, clock=lambda: self.now_s
        )

    def look(self, *, after_s: float = 0.0) -> str:
        """The last line that is reported."""
        self.now_s += after_s
        self.supervisor.look()
        return self.lines[-1] if self.lines else ""

    def fail_to_start(self, pause_s: float) -> str:
        """Lets it start after `pause_s` and end."""
        self.look(after_s=pause_s)
        assert self.server.child.wait(10.0)
        return self.look()


@pytest.fixture
def make(tmp_path: Path, exit_stack: ExitStack) -> Callable[[], Supervised]:
    def supervised() -> Supervised:
        made = Supervised(tmp_path)
        exit_stack.callback(made.server.child.stop, timeout_s=10.0)
        return made

    return supervised


def test_a_server_that_ends_is_started_again_at_once_and_its_children_are_gone(
    tmp_path: Path, make: Callable[[], Supervised]
) -> None:
    one = make()
    first = one.server.child.pid
    orphan = psutil.Process(int(eventually((tmp_path / "child").read_text, ignoring=FileNotFoundError)))
    assert one.look() == ""
    one.server.kill()
    log = f"(log: {tmp_path / 'log'})"
    assert one.look(after_s=STABLE_S) == f"the server was ended by SIGKILL; it is started again {log}"
    one.look()
    assert one.server.child.pid != first
    assert has_ended(orphan)
    assert one.look(after_s=3.0) == "the server is up again after 3.0 s"


def test_pauses_grow_while_it_keeps_ending_and_begin_anew_once_it_is_stable(make: Callable[[], Supervised]) -> None:
    one = make()
    for pause in ("", " in 1 s", " in 2 s", " in 4 s", " in 8 s", " in 8 s"):
        one.server.kill()
        assert f"it is started again{pause} (" in one.look()
        before = one.server.child.pid
        if pause:
            one.look(after_s=float(pause.split()[1]) - 0.5)
            assert one.server.child.pid == before
        one.look(after_s=0.5)
        assert one.server.child.pid != before
        assert one.look().startswith("the server is up again after ")
    one.server.kill()
    assert "it is started again (" in one.look(after_s=STABLE_S)


def test_a_server_that_fails_to_start_is_given_up_with_its_reason(
    tmp_path: Path, make: Callable[[], Supervised]
) -> None:
    one = make()
    (tmp_path / "broken").touch()
    one.server.kill()
    one.look()
    for pause_s in (0.0, 1.0, 2.0):
        found = one.fail_to_start(pause_s)
        assert found.startswith("the server exited with code 3 while starting: the model is broken; it is")
    with pytest.raises(CommandError) as given_up:
        one.fail_to_start(4.0)
    assert str(given_up.value) == (
        "the server exited with code 3 while starting: the model is broken. It failed to start "
        f"{MAX_FAILED_STARTS} times in a row; the end of its log {tmp_path / 'log'}:"
    )
    assert given_up.value.tail == "start\nthe model is broken"  # without the lines of earlier starts


def test_a_start_that_takes_too_long_or_is_impossible_has_failed(
    tmp_path: Path, make: Callable[[], Supervised]
) -> None:
    one = make()
    one.server.can_be_up = False
    one.server.kill()
    one.look()
    one.look()
    hangs = one.server.child.pid
    assert "it is started again" in one.look(after_s=START_LIMIT_S)
    late = "the server is not up 30 s after its start; it is started again in 1 s "
    assert one.look(after_s=0.1).startswith(late)
    one.look(after_s=1.0)
    assert not psutil.pid_exists(hangs)
    tmp_path.rename(tmp_path.with_name("elsewhere"))
    assert one.look(after_s=START_LIMIT_S + 1.0).startswith("the server is not up 30 s after its start")
    assert one.look(after_s=2.0).startswith("the server cannot be started: [Errno 2] No such file or directory")
