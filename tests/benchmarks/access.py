"""What keys, limits and admission add to a request, in µs of CPU time: `python -m tests.benchmarks.access`.

Goal: p99 of the sum at most 60 µs. A part is a callable that does what one request does; who adds one adds a line to
`PARTS`.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Mapping

from tests.benchmarks import access_admission, access_keys

GOAL_US = 60.0
_RUNS, _WARM_UP = 20_000, 2_000
PARTS: tuple[Callable[[], Mapping[str, Callable[[], None]]], ...] = (access_keys.steps, access_admission.steps)


def main() -> int:
    steps = {name: step for part in PARTS for name, step in part().items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    gc.collect()
    gc.freeze()
    for run in range(_WARM_UP + _RUNS):
        for name, step in steps.items():
            began_s = time.thread_time()
            step()
            elapsed_s = time.thread_time() - began_s
            if run >= _WARM_UP:
                times[name].append(elapsed_s)
    sums = [sum(parts) for parts in zip(*times.values(), strict=True)]
    for name, seconds in (*times.items(), ("sum", sums)):
        print(f"{name:<24} p50 {_quantile_us(seconds, 0.5):7.2f} µs   p99 {_quantile_us(seconds, 0.99):7.2f} µs")
    p99_us = _quantile_us(sums, 0.99)
    print(f"goal: p99 of the sum at most {GOAL_US:g} µs: {'reached' if p99_us <= GOAL_US else 'missed'}")
    return 0


def _quantile_us(seconds: list[float], share: float) -> float:
    return 1e6 * sorted(seconds)[int(share * (len(seconds) - 1))]


if __name__ == "__main__":
    sys.exit(main())
