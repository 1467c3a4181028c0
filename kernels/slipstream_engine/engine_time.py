"""Which request has how much of the engine's time.

A pass of a model serves several requests at once. Each is charged its share of the pass: its rows over all rows, a row
being a position that the pass computes. The shares of a pass add up to its time, so that the requests of a run add up
to the time in which the engine was busy.
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
    """Divides the time between two charges among the requests that used it. `clock` gives seconds; `device` is what the
    passes run on."""

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> None:
        self._device, self._clock = device, clock
        self._charged_until_s = clock()

    def begin(self) -> None:
        """The engine was idle until now: nobody is charged for it."""
        self._charged_until_s = self._clock()

    def charge(self, requests: Sequence[Charged], rows: Sequence[int]) -> None:
        """Charges the time since the last charge to `requests`, in proportion to their `rows`. Without any row the time
        goes to the next charge."""
        total = sum(rows)
        if not total:
            return
        if self._device.type == "cuda":  # passes are queued: the clock counts what has been computed
            torch.cuda.synchronize(self._device)
        now_s = self._clock()
        passed_s, self._charged_until_s = now_s - self._charged_until_s, now_s
        for request, count in zip(requests, rows, strict=True):
            request.engine_s += passed_s * count / total
