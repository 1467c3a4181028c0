"""GPU time of a call, and the copy bandwidth to compare it with. Used by both kernel benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

_REPEAT_MS = 50
_COPY_BYTES = 2 << 30
_QUANTILES = [0.5, 0.25, 0.75]


@dataclass(frozen=True, kw_only=True)
class Time:
    """Microseconds per call: the median and the quartiles of all repetitions."""

    median_us: float
    low_us: float
    high_us: float

    def __str__(self) -> str:
        return f"{self.median_us:.1f} ({self.low_us:.1f}-{self.high_us:.1f})"


class Timer(Protocol):
    """The measurements that a benchmark needs from a device."""

    def time(self, calls: Sequence[Callable[[], object]]) -> Time:
        """Time per call of `calls`, run one after the other. Each call must have run before."""
        ...

    def copy_bandwidth(self) -> float:
        """Bytes per second, read plus written, of a copy in device memory that is much larger than the cache."""
        ...


class GpuTimer:
    """Times calls on the current CUDA device. Needs `triton`."""

    def time(self, calls: Sequence[Callable[[], object]]) -> Time:
        """Captures all calls in a CUDA graph. The inputs together should exceed the L2 cache, which is not flushed."""
        from triton.testing import do_bench_cudagraph

        def run() -> None:
            for call in calls:
                call()

        median, low, high = do_bench_cudagraph(run, rep=_REPEAT_MS, quantiles=_QUANTILES)
        per_call = 1e3 / len(calls)
        return Time(median_us=median * per_call, low_us=low * per_call, high_us=high * per_call)

    def copy_bandwidth(self) -> float:
        """Median over copies of 2 GiB."""
        source = torch.randint(256, (_COPY_BYTES,), dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        return 2 * _COPY_BYTES / (self.time([lambda: target.copy_(source)]).median_us * 1e-6)
