"""Children of `slipstream up` stop when told, say how they ended, and never outlive their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from slipstream_tools.up.processes import Child

from tests.support.command import has_ended
from tests.support.polling import PATIENCE_S, eventually

pytestmark = pytest.mark.integration

# Ignores SIGTERM, and so does its own child; prints both pids.
STUBBORN = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"],
                         stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
signal.pause()
"""
PARENT = """
import os, sys
from pathlib import Path
from slipstream_tools.up.processes import Child
child = Child(name="c", command=["sleep", "300"], log_path=Path(sys.argv[1]), env=os.environ)
print(child.pid, flush=True)
sys.stdin.read()
"""


def _child(tmp_path: Path, *command: str) -> Child:
    return Child(name="test", command=command, log_path=tmp_path / "log", env=os.environ)


def _wait_for_line(child: Child) -> str:
    """The first line of its log, once it is there."""
    line = eventually(lambda: child.log_tail(1), "a line of the log")
    assert child.exit_status() is None
    return line


def test_exit_code_and_log_are_told(tmp_path: Path) -> None:
    child = _child(tmp_path, sys.executable, "-c", "print('one'); print('two'); raise SystemExit(3)")
    assert child.wait(PATIENCE_S)
    assert child.exit_status() == "exited with code 3"
    assert child.log_tail(1) == "two"
    assert child.log_tail() == "one\ntwo"


def test_signal_is_told_by_name(tmp_path: Path) -> None:
    child = _child(tmp_path, "sleep", "300")
    assert child.exit_status() is None
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait(PATIENCE_S)
    assert child.exit_status() == "was ended by SIGKILL"


def test_stop_ends_a_stubborn_child_and_its_children(tmp_path: Path) -> None:
    child = _child(tmp_path, sys.executable, "-c", STUBBORN)
    grandchild = psutil.Process(int(_wait_for_line(child)))
    child.stop(timeout_s=0.2)
    assert child.exit_status() is not None
    psutil.wait_procs([grandchild], timeout=PATIENCE_S)
    assert has_ended(grandchild)


def test_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.communicate(timeout=PATIENCE_S)
    psutil.wait_procs([child], timeout=PATIENCE_S)
    assert has_ended(child)


def test_priority_is_lowered_for_the_whole_session(tmp_path: Path) -> None:
    script = (
        "import os, pathlib as p; f = p.Path('/proc/self/autogroup'); print(os.nice(0), f.exists() and f.read_text())"
    )
    child = Child(
        name="test", command=[sys.executable, "-c", script], log_path=tmp_path / "log", env=os.environ, nice=5
    )
    assert child.wait(PATIENCE_S)
    niceness, _, group = child.log_tail().strip().partition(" ")
    assert int(niceness) == os.nice(0) + 5
    assert group == "False" or group.endswith("nice 5")  # Linux may be built without automatic groups
