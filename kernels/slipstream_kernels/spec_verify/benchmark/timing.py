"""Time on a GPU: CUDA graphs of many calls over inputs larger than the cache, replayed and timed by events."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

_REPLAYS = 25
_WARM_UPS = 3
_COPY_BYTES = 2 << 30


@dataclass(frozen=True, kw_only=True)
class Time:
    """Microseconds per call: median of the replays, and their quartiles."""

    median_us: float
    low_us: float
    high_us: float


class Timer(Protocol):
    """How `measure` looks at a device."""

    def time(self, calls: Sequence[Callable[[], object]]) -> Time:
        """Time of one of `calls`, run one after the other. Every call ran before."""
        ...

    def copy_bandwidth(self) -> float:
        """Bytes per second, read plus written, of a copy within the device's memory, much larger than its cache."""
        ...

    def peak_extra_bytes(self, call: Callable[[], object]) -> int:
        """The most memory that `call` held above what was held before it. It ran before."""
        ...


class GpuTimer:
    """The current CUDA device: graph replays between events."""

    def time(self, calls: Sequence[Callable[[], object]]) -> Time:
        """All calls in one graph, its replays timed by events."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for call in calls[:_WARM_UPS]:
                call()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        for _ in range(_WARM_UPS):
            graph.replay()
        return quartiles([_elapsed_us(graph.replay) / len(calls) for _ in range(_REPLAYS)])

    def copy_bandwidth(self) -> float:
        """Of 2 GiB copied, the median."""
        source = torch.randint(256, (_COPY_BYTES,), dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        for _ in range(_WARM_UPS):
            target.copy_(source)
        times = [_elapsed_us(lambda: target.copy_(source)) for _ in range(_REPLAYS)]
        return 2 * _COPY_BYTES / (statistics.median(times) * 1e-6)

    def peak_extra_bytes(self, call: Callable[[], object]) -> int:
        """As PyTorch's allocator counts it."""
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated() - before)


def _elapsed_us(call: Callable[[], object]) -> float:
    """Microseconds between two events around `call`."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def quartiles(times_us: list[float]) -> Time:
    """Median and quartiles of at least two times."""
    low, median, high = statistics.quantiles(times_us, n=4)
    return Time(median_us=median, low_us=low, high_us=high)
