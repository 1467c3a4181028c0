"""Arrival times of an open loop, and the requests in flight."""

from __future__ import annotations

import itertools
import statistics

import pytest
from slipstream_tools.bench.arrivals import Arrivals, InFlight, parse_arrivals


def test_single_requests_are_a_poisson_process() -> None:
    times = Arrivals(rate=4.0).times(20_000, "seed")
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert statistics.mean(gaps) == pytest.approx(0.25, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(0.25, rel=0.05)


def test_bursts_have_the_same_mean_rate() -> None:
    times = Arrivals(rate=4.0, burst=8).times(40_000, "seed")
    assert len(times) / times[-1] == pytest.approx(4.0, rel=0.05)
    assert all(len({*times[start : start + 8]}) == 1 for start in range(0, 800, 8))


def test_a_seed_gives_the_same_times() -> None:
    one = Arrivals(rate=2.0, burst=3)
    assert one.times(50, "7/0") == one.times(50, "7/0") != one.times(50, "7/1")


@pytest.mark.parametrize(("text", "name"), [("2.5", "2.5/s"), ("3x8", "3x8/s"), (" 1 ", "1/s")])
def test_arrivals_are_named_as_they_are_given(text: str, name: str) -> None:
    assert parse_arrivals(text).name == name


@pytest.mark.parametrize("text", ["", "0", "-1", "2/s", "2x0", "2x", "x3", "1e3", "10001", "2x1025", "nan", "٣"])
def test_other_arrivals_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="arrivals are RATE or RATExBURST"):
        parse_arrivals(text)


def test_the_mean_number_in_flight() -> None:
    found = InFlight()
    first = found.change(1, 10.0)
    second = found.change(1, 11.0)
    assert found.change(-1, 13.0) - first == pytest.approx(1.0 + 2 * 2.0)
    assert found.change(-1, 14.0) - second == pytest.approx(2 * 2.0 + 1.0)
