"""How long `slipstream up` takes to serve again after Triton ended.

Three faults: Triton is killed, the Python process of its model is killed, or that process is paused for 3 s. A request
is sent every 0.1 s. The time is that from the fault to the first answer; the start of an undisturbed Triton, by the
same command, is measured before each fault's turn. Afterwards 20 requests must be answered.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil

from tests.benchmarks.harness import Option, Report, benchmark

_SLIPSTREAM = Path(sys.executable).parent / "slipstream"
_PAUSE_S = 3.0
_STABLE_S = 11.0  # then it is started again without a pause
_AFTER = 20
_LIMIT_S = 300.0


class Up:
    """A running `slipstream up`. `start_s` is the time that its Triton took to start."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [str(_SLIPSTREAM), "up", "--port", str(port)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("slipstream: Triton is ready after "):
                self.start_s = float(line.split()[-2])
            if "Ctrl-C stops everything" in line:
                return
        raise RuntimeError("slipstream up did not start")

    def child(self, name: str) -> psutil.Process:
        [found] = [
            child
            for child in psutil.Process(self.process.pid).children(recursive=True)
            if child.status() != psutil.STATUS_ZOMBIE and any(name in part for part in child.cmdline()[:1])
        ]
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


def _kill_triton(up: Up) -> None:
    up.child("bin/tritonserver").kill()


def _kill_model(up: Up) -> None:
    up.child("python_backend_stub").kill()


def _pause_model(up: Up) -> None:
    model = up.child("python_backend_stub")
    model.suspend()
    end_s = time.monotonic() + _PAUSE_S
    while time.monotonic() < end_s:
        up.status()
    with suppress(psutil.NoSuchProcess):
        model.resume()


_FAULTS: dict[str, Callable[[Up], None]] = {
    "Triton killed": _kill_triton,
    "model's process killed": _kill_model,
    "model's process paused for 3 s": _pause_model,
}


def measure(args: argparse.Namespace, report: Report) -> None:
    for name, fault in _FAULTS.items():
        with _running(args.port) as up:
            found = [_one(up, fault) for _ in range(args.times)]
        back_s = sorted(back for back, _ in found)
        failed = sum(failures for _, failures in found)
        report.row(
            name,
            times=len(found),
            start_s=up.start_s,
            back_p50_s=back_s[len(back_s) // 2],
            back_max_s=back_s[-1],
            failed_after=failed,
        )
        report.require(not failed, f"{name}: {failed} requests failed after the first answer")


def _one(up: Up, fault: Callable[[Up], None]) -> tuple[float, int]:
    """The seconds until the first answer, and the failures after it."""
    began_s = time.monotonic()
    fault(up)
    while up.status() != 200:
        if time.monotonic() - began_s > _LIMIT_S:
            raise RuntimeError("Triton did not come back")
        time.sleep(0.1)
    back_s = time.monotonic() - began_s
    failed = sum(up.status() != 200 for _ in range(_AFTER))
    time.sleep(_STABLE_S)
    return back_s, failed


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        times=Option(10, 1, "faults of each kind"),
        port=Option(8080, 8080, "port of the gateway"),
    )
