"""The watchdog of a Triton model ends Triton when the model's process dies or is frozen, and only then."""

from __future__ import annotations

import os
import signal
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.polling import PATIENCE_S, eventually
from tests.support.watched import FORK_WITH_THE_PIPE, SILENT_LOOKS, Watched

pytestmark = pytest.mark.integration

LOOK_S = 2.0
MODEL = f"""
import asyncio, os, sys, threading, time
from slipstream_engine.pipe.watchdog import TritonCalls, Watchdog
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
calls = TritonCalls()
watchdog = Watchdog(loop, calls=[calls], look_s={LOOK_S})

def compute():
    all(each == 0 for each in iter(int, 1))

def work(calls_triton):
    while True:
        with calls:
            time.sleep({LOOK_S} / 2)
            calls_triton()

print("loaded", flush=True)
while order := sys.stdin.readline().strip():
    if order == "end":
        watchdog.close()
        break
    if order == "block":
        loop.call_soon_threadsafe(threading.Event().wait)
    if order == "compute":
        loop.call_soon_threadsafe(compute)
    if order == "call":
        threading.Thread(target=work, args=[lambda: None], daemon=True).start()
    if order == "wait in a call":
        threading.Thread(target=compute, daemon=True).start()
        threading.Thread(target=work, args=[threading.Event().wait], daemon=True).start()
    if order == "fork with the pipe":{textwrap.indent(FORK_WITH_THE_PIPE, " " * 8)}
    if order.startswith("/"):
        os.posix_spawn("/bin/true", ["true"], {{}}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, order, os.O_RDONLY, 0)])
        print("read", flush=True)
"""
TRITON = """
import subprocess, sys
model = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
print(model.pid, flush=True)
model.wait()
print("goes on", flush=True)
import time; time.sleep(float(sys.argv[2]))
"""
LONG_S = 300.0
SHORT_S = 0.5


class Triton(Watched):
    """A process in place of Triton, and its model's process, which is watched."""

    def __init__(self, lives_s: float) -> None:
        super().__init__(TRITON, MODEL, str(lives_s))

    def started(self) -> psutil.Process:
        [pid] = {self.line(), self.line()} - {"loaded"}
        return psutil.Process(int(pid))


@pytest.fixture
def long_triton() -> Iterator[Triton]:
    triton = Triton(LONG_S)
    yield triton
    triton.end()


def test_triton_ends_when_the_process_of_its_model_is_killed(long_triton: Triton) -> None:
    long_triton.target.kill()
    assert long_triton.process.wait(PATIENCE_S) == -signal.SIGKILL
    long_triton.wait_for_watchdog()


def test_triton_ends_and_no_other_process_when_a_child_of_its_model_holds_the_pipe(long_triton: Triton) -> None:
    """The id of the model's process may be that of another one by then."""
    long_triton.order("fork with the pipe")
    assert long_triton.line() == "forked"
    long_triton.target.kill()
    assert long_triton.process.wait(PATIENCE_S) == -signal.SIGKILL
    assert "frozen" not in long_triton.end()


def test_triton_ends_when_the_process_of_its_model_is_frozen(long_triton: Triton) -> None:
    long_triton.target.suspend()
    assert long_triton.process.wait(PATIENCE_S) == -signal.SIGKILL
    psutil.wait_procs([long_triton.target, long_triton.watchdog], timeout=PATIENCE_S)
    assert not long_triton.target.is_running()


def test_triton_ends_when_the_event_loop_of_its_model_hangs(long_triton: Triton) -> None:
    long_triton.order("block")
    assert long_triton.process.wait(PATIENCE_S) == -signal.SIGKILL


def test_triton_ends_when_one_of_its_calls_does_not_come_back(long_triton: Triton) -> None:
    """The other threads work meanwhile."""
    long_triton.order("wait in a call")
    assert long_triton.process.wait(PATIENCE_S) == -signal.SIGKILL


def test_triton_goes_on_while_calls_come_back(long_triton: Triton) -> None:
    long_triton.order("call")
    long_triton.wait_for_looks(2 * SILENT_LOOKS + 2)
    assert long_triton.process.poll() is None


def test_triton_goes_on_after_a_short_pause_and_during_a_long_computation(long_triton: Triton) -> None:
    long_triton.target.suspend()
    long_triton.wait_for_looks(1)
    long_triton.target.resume()
    long_triton.wait_for_looks(SILENT_LOOKS + 2)
    long_triton.order("compute")
    long_triton.wait_for_looks(SILENT_LOOKS + 2)
    assert long_triton.process.poll() is None
    assert long_triton.target.is_running()


def test_triton_goes_on_while_its_model_waits_for_a_disk(long_triton: Triton, tmp_path: Path) -> None:
    """The kernel counts the wait of `vfork` as the same: here for a child that opens a pipe."""
    slow = tmp_path / "slow"
    os.mkfifo(slow)
    long_triton.order(str(slow))
    eventually(lambda: long_triton.target.status() == psutil.STATUS_DISK_SLEEP, "the model waits")
    long_triton.wait_for_looks(SILENT_LOOKS + 2)
    slow.write_bytes(b"")
    assert long_triton.line() == "read"


def test_triton_goes_on_when_the_model_is_unloaded() -> None:
    triton = Triton(SHORT_S)
    triton.order("end")
    assert triton.line() == "goes on"
    assert not triton.watchdog.is_running()
    assert triton.process.wait(PATIENCE_S) == 0


def test_watchdog_ends_when_triton_ended_first(long_triton: Triton) -> None:
    """When Triton ends first, its model's process notices that and ends without a word."""
    long_triton.process.kill()
    long_triton.process.communicate()
    long_triton.wait_for_watchdog()
