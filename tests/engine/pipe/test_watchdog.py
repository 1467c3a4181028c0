"""The watchdog of a Triton model ends Triton when the model's process dies, and only then."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from tests.support.polling import PATIENCE_S

pytestmark = pytest.mark.integration

MODEL = """
import sys
from slipstream_engine.pipe.watchdog import Watchdog
watchdog = Watchdog()
print("loaded", flush=True)
if sys.stdin.readline() == "end\\n":
    watchdog.close()
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


class Triton:
    """A process in place of Triton, and its model's process."""

    def __init__(self, lives_s: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", TRITON, MODEL, str(lives_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        lines = {self.line(), self.line()}
        [pid] = lines - {"loaded"}
        self.model = psutil.Process(int(pid))
        [self.watchdog] = self.model.children()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture
def long_triton() -> Iterator[Triton]:
    triton = Triton(LONG_S)
    yield triton
    triton.process.kill()
    triton.process.communicate()


def test_triton_ends_when_the_process_of_its_model_is_killed(long_triton: Triton) -> None:
    long_triton.model.kill()
    assert long_triton.process.wait(PATIENCE_S) == -signal.SIGKILL
    psutil.wait_procs([long_triton.watchdog], timeout=PATIENCE_S)
    assert not long_triton.watchdog.is_running()


def test_triton_goes_on_when_the_model_is_unloaded() -> None:
    triton = Triton(SHORT_S)
    assert triton.process.stdin is not None
    triton.process.stdin.write("end\n")
    triton.process.stdin.flush()
    assert triton.line() == "goes on"
    assert not triton.watchdog.is_running()
    assert triton.process.wait(PATIENCE_S) == 0


def test_watchdog_ends_when_triton_ended_first(long_triton: Triton) -> None:
    """When Triton ends first, its model's process notices that and ends without a word."""
    long_triton.process.kill()
    long_triton.process.communicate()
    psutil.wait_procs([long_triton.watchdog], timeout=PATIENCE_S)
    assert not long_triton.watchdog.is_running()
