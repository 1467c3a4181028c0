"""Intervals that cover, quantiles that occurred, ranks as scipy has them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from slipstream_tools.bench.statistics import (
    bootstrap,
    distribution,
    mean_difference,
    quantile_reduction,
    rank_correlation,
    ratio_of_means,
    weighted_quantile,
)

VALUES = st.lists(st.floats(0.001, 1000), min_size=1, max_size=40)


@settings(deadline=None, max_examples=40)
@given(VALUES, st.sampled_from([0.5, 0.95, 0.99]))
def test_quantiles_are_those_of_numpy_and_occur(values: list[float], q: float) -> None:
    data = np.array(values)
    [found] = weighted_quantile(data, q)(np.ones((1, len(values))))
    assert found == np.quantile(data, q, method="inverted_cdf")
    shown = distribution(values)
    assert shown is not None
    assert {shown.p50, shown.p95, shown.p99} <= set(values)


def test_weights_count_like_repeated_rows() -> None:
    data, counts = np.array([3.0, 1.0, 2.0]), np.array([[2, 0, 5]])
    repeated = np.repeat(data, counts[0])
    for q in (0.1, 0.5, 0.9):
        assert weighted_quantile(data, q)(counts)[0] == np.quantile(repeated, q, method="inverted_cdf")


@pytest.mark.parametrize(
    ("statistic", "truth", "most"),
    [("mean", 0.2, 0.99), ("ratio", 1.25, 0.99), ("p50", 0.2, 1.0)],  # percentiles of quantiles are cautious
)
def test_intervals_cover_the_truth_about_as_often_as_they_say(statistic: str, truth: float, most: float) -> None:
    random = np.random.default_rng(7)
    hits, runs = 0, 150
    for run in range(runs):
        plain = random.gamma(25, 0.04, size=80)  # mean 1
        other = plain * 0.8 + random.normal(0, 0.02, size=80)
        made = {
            "mean": mean_difference(other, plain),
            "ratio": ratio_of_means(plain, other),
            "p50": quantile_reduction(plain, other, 0.5),
        }[statistic]
        [interval] = bootstrap([made], range(80), seed=run, resamples=400)
        assert interval is not None
        hits += interval.low <= truth <= interval.high
    assert 0.88 <= hits / runs <= most


def test_rounds_of_a_request_are_no_independent_evidence() -> None:
    """Ten rounds of ten requests: an interval over rows would be far too narrow."""
    random = np.random.default_rng(1)
    effects = random.normal(0.5, 0.5, size=10)
    plain = np.ones(100)
    other = plain - np.repeat(effects, 10)
    clustered, naive = (
        bootstrap([mean_difference(plain, other)], clusters, seed=0)[0]
        for clusters in (np.repeat(range(10), 10).tolist(), range(100))
    )
    assert clustered is not None
    assert naive is not None
    assert clustered.estimate == pytest.approx(naive.estimate)
    assert clustered.high - clustered.low > 2 * (naive.high - naive.low)


def test_the_same_seed_gives_the_same_interval_whatever_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, other = np.linspace(1, 2, 50), np.linspace(1, 1.5, 50)
    statistic = ratio_of_means(plain, other)
    whole = bootstrap([statistic], range(50), seed=3)
    monkeypatch.setattr("slipstream_tools.bench.statistics._MAX_CELLS", 700)
    assert bootstrap([statistic], range(50), seed=3) == whole
    assert bootstrap([statistic], range(50), seed=4) != whole


def test_nothing_to_resample_gives_no_interval() -> None:
    empty = np.array([])
    assert bootstrap([mean_difference(empty, empty)], [], seed=0) == [None]
    assert bootstrap([ratio_of_means(np.ones(2), np.zeros(2))], [0, 1], seed=0) == [None]
    assert distribution([]) is None


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=30))
def test_rank_correlation_is_spearmans(pairs: list[tuple[int, int]]) -> None:
    first, second = zip(*pairs, strict=True)
    found = rank_correlation(first, second)
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert found is None
    else:
        assert found == pytest.approx(stats.spearmanr(first, second).statistic)


def test_one_request_alone_has_no_interval() -> None:
    plain = np.array([1.0, 2.0, 3.0])
    assert bootstrap([mean_difference(plain, plain / 2)], [7, 7, 7], seed=0) == [None]
