"""The engine time of each request.

A pass of a model serves several requests. Each request is charged its share of the pass: its rows over all rows, where
a row is a position that the pass computes. The shares of a pass sum to its time, so the times of all requests sum to
the engine's busy time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch


class Charged(Protocol):
    """A request that takes part in a pass."""

    engine_s: float


class EngineTime:
    """Divides the time between two charges among requests. `clock` returns seconds; the passes run on `device`."""

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> None:
        self._device, self._clock = device, clock
        self._charged_until_s = clock()

    def begin(self) -> None:
        """Start charging now; the idle time before is charged to no request."""
        self._charged_until_s = self._clock()

    def charge(self, requests: Sequence[Charged], rows: Sequence[int]) -> None:
        """Charge the time since the last charge to `requests`, in proportion to their `rows`. Without any row, the time
        is left for the next charge."""
        total = sum(rows)
        if not total:
            return
        if self._device.type == "cuda":  # passes are queued; wait until they are computed
            torch.cuda.synchronize(self._device)
        now_s = self._clock()
        passed_s, self._charged_until_s = now_s - self._charged_until_s, now_s
        for request, count in zip(requests, rows, strict=True):
            request.engine_s += passed_s * count / total
