"""The window of latest figures."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slipstream_operator.rollout.analysis.window import Window, bin_of, p95_of


@given(times=st.lists(st.floats(1e-3, 1e3), min_size=20, max_size=300))
def test_p95_of_a_histogram_is_within_a_bin_of_the_true_one(times: list[float]) -> None:
    histogram: dict[int, int] = {}
    for seconds in times:
        histogram[bin_of(seconds)] = histogram.get(bin_of(seconds), 0) + 1
    true = float(np.quantile(times, 0.95, method="inverted_cdf"))
    assert p95_of(histogram) == pytest.approx(true, rel=0.095)


def test_nothing_measured_has_no_figures() -> None:
    figures = Window(seconds=600).recent(0.0).figures
    assert (figures.samples, figures.p95_seconds, figures.accept, figures.error_rate) == (0, None, None, None)


def test_window_forgets_and_ignores_what_is_older_than_itself() -> None:
    window = Window(seconds=100)
    for time_s in range(0, 1_000, 10):
        bucket = window.at(float(time_s))
        assert bucket is not None
        bucket.answers += 1
    assert window.at(100.0) is None
    assert len(window.buckets) == 6
    assert window.recent(1_000.0).figures.samples == 10
    assert window.recent(2_000.0).figures.samples == 0


def test_late_outcome_still_finds_its_bucket() -> None:
    window = Window(seconds=100)
    newest, late = window.at(1_000.0), window.at(950.0)
    assert newest is not None
    assert late is not None
    assert late.index < newest.index
    assert window.at(951.0) is late
