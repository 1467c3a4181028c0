"""What the kernel says of a process: its memory, and whether it computes."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, linear_regression
from typing import NamedTuple

import psutil

from tests.support.command import arguments_of

_QUIET_S = 0.08
_QUIET_NS = 1_500_000
_POLL_S = 0.004
_STUB = "triton_python_backend_stub"
_MB = 1_000_000.0
_BLOCKS = 10


def rss_mb(pid: int) -> float:
    """Resident memory of a process and its children, in MB."""
    process = psutil.Process(pid)
    return sum(each.memory_info().rss for each in (process, *process.children(recursive=True))) / _MB


class Slope(NamedTuple):
    """Of a line through points over time, with its standard error: a short or restless stretch tells little."""

    mb_per_h: float
    error_mb_per_h: float

    def is_below(self, limit_mb_per_h: float) -> bool | None:
        """None: the points do not tell, within two standard errors."""
        distance = self.mb_per_h - limit_mb_per_h
        if math.isnan(self.error_mb_per_h) or abs(distance) <= 2.0 * self.error_mb_per_h:
            return None
        return distance < 0.0


def slope(times_s: Sequence[float], values_mb: Sequence[float]) -> Slope:
    """By least squares over the means of a few blocks of points: neighbours are much alike, and would make the error
    look smaller than it is. Not a number where there are too few points."""
    if len(times_s) < 2 * _BLOCKS:
        return Slope(math.nan, math.nan)
    bounds = [len(times_s) * block // _BLOCKS for block in range(_BLOCKS + 1)]
    blocks = [slice(begin, end) for begin, end in itertools.pairwise(bounds)]
    times_h, means_mb = [fmean(times_s[part]) / 3600.0 for part in blocks], [fmean(values_mb[part]) for part in blocks]
    line = linear_regression(times_h, means_mb)
    middle_h = fmean(times_h)
    pairs = zip(times_h, means_mb, strict=True)
    scatter = sum((mb - line.intercept - line.slope * at_h) ** 2 for at_h, mb in pairs)
    spread = sum((at_h - middle_h) ** 2 for at_h in times_h)
    return Slope(line.slope, math.sqrt(scatter / (_BLOCKS - 2) / spread))


class Engine:
    """The process in which a Triton replica decodes. Its step thread sleeps where no request is active, so the CPU
    time that the kernel counts for it says when the last one ended: the engine's own view, not the gateway's."""

    def __init__(self, triton_pid: int) -> None:
        children = psutil.Process(triton_pid).children(recursive=True)
        [stub] = [child for child in children if _STUB in " ".join(arguments_of(child)[:1])]
        self._tasks = Path(f"/proc/{stub.pid}/task")

    def cpu_ns(self) -> int:
        total = 0
        for task in self._tasks.iterdir():
            try:
                total += int((task / "schedstat").read_text().split()[0])
            except FileNotFoundError:  # a thread that has just ended
                continue
        return total


def quiet_since_s(engines: Sequence[Engine], *, limit_s: float) -> float:
    """When the engines last computed anything, by `time.monotonic`, once they have been quiet for a while. Raises
    `TimeoutError` where they are not quiet within `limit_s`."""
    deadline_s = time.monotonic() + limit_s
    busy_s, busy_ns = time.monotonic(), _sum(engines)
    while True:
        time.sleep(_POLL_S)
        now_s, now_ns = time.monotonic(), _sum(engines)
        if now_ns - busy_ns > _QUIET_NS:
            busy_s, busy_ns = now_s, now_ns
        elif now_s - busy_s >= _QUIET_S:
            return busy_s
        if now_s > deadline_s:
            raise TimeoutError(f"the engines compute still after {limit_s:g} s")


def _sum(engines: Sequence[Engine]) -> int:
    return sum(engine.cpu_ns() for engine in engines)
