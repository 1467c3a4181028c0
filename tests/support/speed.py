"""How much slower this machine is than the one that the tests' limits were written for.

A limit exists to end a test that hangs, so that all limits grow with `SLOWNESS`. The process that starts the run
measures it once, and its workers inherit it in an environment variable.
"""

from __future__ import annotations

import os
import statistics
import time

import pytest

_VARIABLE = "SLIPSTREAM_TEST_SLOWNESS"
_ROUNDS = 200_000
_REFERENCE_S = 0.006  # an idle core of an x86-64 server of 2023
_SAMPLES = 5


def _measured() -> float:
    """Wall-clock time of a fixed computation relative to the reference, at least 1: other processes' load counts."""
    samples_s = []
    for _ in range(_SAMPLES):
        began_s = time.perf_counter()
        value = 0
        for number in range(_ROUNDS):
            value = (value * 31 + number) & 0xFFFF
        samples_s.append(time.perf_counter() - began_s)
    return max(1.0, statistics.median(samples_s) / _REFERENCE_S)


SLOWNESS = float(os.environ.setdefault(_VARIABLE, f"{_measured():.2f}"))


class TimeLimits:
    """The plugin that multiplies the time limit of each test by `SLOWNESS`."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        default_s = float(config.getoption("timeout", None) or config.getini("timeout") or 0)
        for item in items:
            marker = item.get_closest_marker("timeout")
            limit_s = float(marker.args[0]) if marker else default_s
            item.add_marker(pytest.mark.timeout(limit_s * SLOWNESS), append=False)
