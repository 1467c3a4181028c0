"""How long `slipstream up` takes to serve again after Triton ended.

Three faults: Triton is killed, the Python process of its model is killed, or that process is paused for 3 s. Requests
are sent one after the other. `back` is the time from the fault to the first answer. `start` is the time that the new
Triton takes from its first instruction until it is ready; `more` is the rest. Afterwards 20 requests must be answered.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from statistics import median
from typing import NamedTuple

import httpx
import psutil

from tests.benchmarks.harness import Option, Report, benchmark
from tests.support.command import SCRIPT

_PAUSE_S = 3.0
_STABLE_S = 11.0  # then it is started again without a pause
_AFTER = 20
_LIMIT_S = 300.0


class Up:
    """A running `slipstream up`."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [SCRIPT, "up", "--port", str(port)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if "Ctrl-C stops everything" in line:
                return
        raise RuntimeError("slipstream up did not start")

    def child(self, name: str) -> psutil.Process | None:
        """The child process with this program, if it runs."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if child.status() != psutil.STATUS_ZOMBIE and name in child.cmdline()[0]:
                    return child
        return None

    def model(self) -> psutil.Process:
        found = self.child("python_backend_stub")
        assert found is not None
        return found

    def triton(self) -> psutil.Process:
        found = self.child("bin/tritonserver")
        assert found is not None
        return found

    def status(self) -> int:
        """The status of the answer to a new prompt."""
        prompt = [{"role": "user", "content": f"Say hello, number {time.monotonic_ns()}."}]
        body = {"model": "slipstream-embedded", "messages": prompt, "max_tokens": 2}
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=_LIMIT_S).status_code


@contextmanager
def _running(port: int) -> Iterator[Up]:
    up = Up(port)
    try:
        yield up
    finally:
        up.process.send_signal(signal.SIGINT)
        up.process.communicate()


def _pause_model(up: Up) -> None:
    model = up.model()
    model.suspend()
    end_s = time.monotonic() + _PAUSE_S
    while time.monotonic() < end_s:
        up.status()
    with suppress(psutil.NoSuchProcess):
        model.resume()


_FAULTS: dict[str, Callable[[Up], None]] = {
    "Triton killed": lambda up: up.triton().kill(),
    "model's process killed": lambda up: up.model().kill(),
    "model's process paused for 3 s": _pause_model,
}


class _Restart(NamedTuple):
    back_s: float
    start_s: float
    failed_after: int


def measure(args: argparse.Namespace, report: Report) -> None:
    for name, fault in _FAULTS.items():
        with _running(args.port) as up:
            found = [_restart(up, fault) for _ in range(args.times if name == "Triton killed" else args.others)]
        failed = sum(restart.failed_after for restart in found)
        report.row(
            name,
            times=len(found),
            back_p50_s=median(restart.back_s for restart in found),
            start_p50_s=median(restart.start_s for restart in found),
            more_p50_s=median(restart.back_s - restart.start_s for restart in found),
            more_max_s=max(restart.back_s - restart.start_s for restart in found),
            failed_after=failed,
        )
        report.require(not failed, f"{name}: {failed} requests failed after the first answer")


def _restart(up: Up, fault: Callable[[Up], None]) -> _Restart:
    old, began_s = up.triton(), time.time()
    fault(up)
    start_s: float | None = None
    while up.status() != 200:
        new = up.child("bin/tritonserver")
        if start_s is None and new is not None and new != old and _is_ready(new):
            start_s = time.time() - new.create_time()
        if time.time() - began_s > _LIMIT_S:
            raise RuntimeError("Triton did not come back")
    now_s = time.time()
    back_s, start_s = now_s - began_s, start_s or now_s - up.triton().create_time()
    failed = sum(up.status() != 200 for _ in range(_AFTER))
    time.sleep(_STABLE_S)
    return _Restart(back_s, start_s, failed)


def _is_ready(triton: psutil.Process) -> bool:
    [port] = [part.partition("=")[2] for part in triton.cmdline() if part.startswith("--http-port=")]
    try:
        return httpx.get(f"http://127.0.0.1:{port}/v2/health/ready", timeout=1.0).is_success
    except httpx.HTTPError:
        return False


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        times=Option(10, 1, "kills of Triton"),
        others=Option(3, 1, "faults of each other kind"),
        port=Option(8080, 8080, "port of the gateway"),
    )
