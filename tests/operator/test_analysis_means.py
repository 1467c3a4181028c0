"""Means, the confidence sequence on their difference, and the window of latest figures."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slipstream_operator.analysis.means import RunningMean, upper_bound
from slipstream_operator.analysis.window import Window, bin_of, p95_of

from tests.benchmarks import rollback


def mean_of(values: list[float]) -> RunningMean:
    mean = RunningMean()
    for value in values:
        mean.add(value)
    return mean


@given(values=st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=200))
def test_running_mean_is_numpys(values: list[float]) -> None:
    mean = mean_of(values)
    assert mean.mean == pytest.approx(np.mean(values))
    assert mean.variance_of_mean == pytest.approx(np.var(values, ddof=1) / len(values), rel=1e-6, abs=1e-12)


def test_fading_mean_follows_a_change() -> None:
    mean = RunningMean()
    for value in [1.0] * 5_000 + [2.0] * 3_000:
        mean.add(value, keep=0.999)
    assert mean.mean > 1.9


def test_too_few_answers_have_no_bound() -> None:
    found = upper_bound(mean_of([1.0, 1.1] * 14), mean_of([2.0] * 500), margin=0.0, confidence=0.95, tuned_for=200)
    assert found.difference == pytest.approx(-0.95)
    assert found.bound is None
    nothing = upper_bound(RunningMean(), RunningMean(), margin=0.0, confidence=0.95, tuned_for=200)
    assert nothing.difference is None


def test_bound_tightens_with_answers_and_with_less_confidence() -> None:
    random = np.random.default_rng(0)
    bounds = []
    for count, confidence in ((100, 0.95), (1_000, 0.95), (1_000, 0.8)):
        one, two = (mean_of(random.normal(mean, 1.0, count).tolist()) for mean in (1.0, 2.0))
        bounds.append(upper_bound(one, two, margin=0.02, confidence=confidence, tuned_for=200).bound)
    assert bounds[0] > bounds[1] > bounds[2] > -1.2


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_gain_that_is_not_there_is_hardly_ever_shown_however_often_one_looks(share: float) -> None:
    random = np.random.default_rng(11)
    shown = rollback.promotions(random, gain=0.02, margin=0.02, share=share, classes=60)
    assert sum(at > 0 for at in shown) <= 6


def test_gain_that_is_there_is_shown_within_a_few_hundred_answers() -> None:
    random = np.random.default_rng(12)
    shown = rollback.promotions(random, gain=0.3, margin=0.02, share=0.5, classes=20)
    assert all(0 < at < 1_500 for at in shown)


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
