"""The watchdog of vLLM's processes ends one that is frozen, and no other. Servers: test_frozen_processes.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.polling import PATIENCE_S, eventually
from tests.support.watched import FORK_WITH_THE_PIPE, SILENT_LOOKS, Watched

pytestmark = pytest.mark.integration

LOOK_S = 2.0
# What a process of vLLM may do, with Python's lock held: compute, or wait for a disk. The kernel counts the wait of
# `vfork` as the same: here for a child that opens a pipe.
PROCESS = f"""
import ctypes, os, sys, threading, time
from slipstream_vllm import watchdog
watchdog.install(look_s={LOOK_S})
watchdog.install(look_s={LOOK_S})
print("watched", flush=True)
while order := sys.stdin.readline().strip():
    if order == "compute":
        all(each == 0 for each in iter(int, 1))
    if order == "hang":
        ctypes.PyDLL(None).pause()
    if order.startswith("/"):
        os.posix_spawn("/bin/true", ["true"], {{}}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, order, os.O_RDONLY, 0)])
        print("read", flush=True)
    if order == "fork" and os.fork() == 0:
        watchdog.install(look_s={LOOK_S})
        print(os.getpid(), flush=True)
        ctypes.PyDLL(None).pause()
    if order == "fork with the pipe":{textwrap.indent(FORK_WITH_THE_PIPE, " " * 8)}
"""


@pytest.fixture
def watched() -> Iterator[Watched]:
    watched = Watched(PROCESS)
    yield watched
    watched.end()


def test_a_stopped_process_is_killed(watched: Watched) -> None:
    watched.process.send_signal(signal.SIGSTOP)
    assert watched.process.wait(PATIENCE_S) == -signal.SIGKILL
    watched.wait_for_watchdog()


def test_a_process_that_waits_with_the_lock_of_python_is_killed(watched: Watched) -> None:
    watched.order("hang")
    assert watched.process.wait(PATIENCE_S) == -signal.SIGKILL


def test_a_process_that_computes_with_the_lock_of_python_goes_on(watched: Watched) -> None:
    watched.order("compute")
    watched.wait_for_looks(SILENT_LOOKS + 2)
    assert watched.process.poll() is None


def test_a_process_that_waits_for_a_disk_with_the_lock_of_python_goes_on(watched: Watched, tmp_path: Path) -> None:
    """As one that loads weights from a slow volume."""
    slow = tmp_path / "slow"
    os.mkfifo(slow)
    watched.order(str(slow))
    eventually(lambda: watched.target.status() == psutil.STATUS_DISK_SLEEP, "it waits")
    watched.wait_for_looks(SILENT_LOOKS + 2)
    slow.write_bytes(b"")
    assert watched.line() == "read"


def test_a_short_pause_is_none(watched: Watched) -> None:
    watched.process.send_signal(signal.SIGSTOP)
    watched.wait_for_looks(1)  # a busy machine may miss the end of a second one
    watched.process.send_signal(signal.SIGCONT)
    watched.wait_for_looks(SILENT_LOOKS + 2)
    assert watched.process.poll() is None


def test_no_process_is_killed_in_place_of_one_that_has_ended(watched: Watched) -> None:
    """Its id may be that of another process, while a forked child holds its pipe."""
    watched.order("fork with the pipe")
    assert watched.line() == "forked"
    watched.process.kill()
    watched.wait_for_watchdog()
    assert "frozen" not in watched.end()


def test_a_forked_process_has_a_watchdog_of_its_own(watched: Watched) -> None:
    watched.order("fork")
    forked = psutil.Process(int(watched.line()))
    eventually(lambda: forked.status() == psutil.STATUS_ZOMBIE, "the watchdog kills the forked process")
    assert watched.process.poll() is None


@pytest.mark.parametrize(("statement", "watchdogs"), [("install_in_engine()", 0), ("install()", 1)])
def test_a_program_that_holds_the_engine_itself_is_not_watched(statement: str, watchdogs: int) -> None:
    """Its user may stop it for an hour, in a notebook or a debugger."""
    code = f"from slipstream_vllm import watchdog; watchdog.{statement}; print(len(psutil.Process().children()))"
    command = [sys.executable, "-c", f"import psutil; {code}"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{watchdogs}\n"
