"""From logits to the sampled distribution: temperature, top-k, top-p, min-p, ties; and drawing from it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from slipstream_kernels import SamplingBatch
from slipstream_kernels.filters import filtered, scaled
from slipstream_kernels.sampling import draw
from torch import Tensor

from tests.kernels.oracle import Rules
from tests.kernels.oracle import distribution as oracle_distribution


def one(
    temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, seed: int = 0, rows: int = 1, min_p: float = 0.0
) -> SamplingBatch:
    columns = ([value] * rows for value in (temperature, top_p, top_k, seed))
    return SamplingBatch.of(*columns, min_p=[min_p] * rows)


def filtered_probs(logits: Tensor, sampling: SamplingBatch) -> Tensor:
    """The distribution of each row that is not greedy: float32 [N, V]."""
    x = logits.to(torch.float32)
    scores = scaled(x, sampling, x.amax(-1))
    weights = filtered(scores.exp(), scores, sampling)
    return weights / weights.sum(-1, keepdim=True)


def distribution(row: Tensor, temperature: float, top_p: float, top_k: int, min_p: float = 0.0) -> list[float]:
    """What the float64 filters make of one row of logits."""
    rules = Rules(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
    return oracle_distribution(row.float().numpy(), rules).tolist()


settings_of_a_row = st.tuples(
    st.sampled_from([0.0, 0.1, 0.7, 1.0, 5.0]),
    st.sampled_from([0.0, 0.3, 0.9, 0.999, 1.0]),
    st.integers(0, 12),
    st.sampled_from([0.0, 0.0, 0.03, 0.3, 1.0]),
)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    st.lists(settings_of_a_row, min_size=1, max_size=6),
    st.integers(1, 10),
    st.integers(0, 2**32),
    st.booleans(),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_mixed_rows_match_the_float64_filters(rows, vocabulary, seed, tied, dtype):
    logits = 3 * torch.randn(len(rows), vocabulary, generator=torch.Generator().manual_seed(seed))
    logits = (logits.round() if tied else logits).to(dtype)
    temperature, top_p, top_k, min_p = zip(*rows, strict=True)
    sampling = SamplingBatch.of(temperature, top_p, top_k, [0] * len(rows), min_p=min_p)
    expected = torch.tensor([distribution(row, *setting) for row, setting in zip(logits, rows, strict=True)])
    sampled = sampling.temperature > 0
    found = filtered_probs(logits, sampling)
    torch.testing.assert_close(found[sampled], expected.float()[sampled], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"), [(1.0, 0.9, 0), (1.0, 1.0, 400), (50.0, 0.95, 0), (1.0, 0.95, 500)]
)
def test_long_rows_keep_what_a_full_sort_keeps(temperature, top_p, top_k):
    logits = 2 * torch.randn(3, 1000, generator=torch.Generator().manual_seed(1))
    probs = filtered_probs(logits, one(temperature, top_p, top_k, rows=3))
    expected = torch.tensor([distribution(row, temperature, top_p, top_k) for row in logits])
    torch.testing.assert_close(probs, expected.float(), rtol=1e-3, atol=1e-7)


def test_top_p_counts_what_top_k_has_renormalised():
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    # After top-k 2 the masses are 0.57 and 0.43: the first alone reaches 0.5, as it would not before.
    assert filtered_probs(logits, one(top_p=0.5, top_k=2)).tolist() == [[1.0, 0.0, 0.0, 0.0]]


def test_min_p_counts_from_the_most_probable_token_whatever_else_is_dropped():
    logits = torch.tensor([[0.5, 0.3, 0.16, 0.04]]).log()
    for others in ({}, {"top_k": 3}, {"top_p": 0.95}):
        # A limit of 0.15: of the whole distribution as of a part of it.
        probs = filtered_probs(logits, one(min_p=0.3, **others))
        torch.testing.assert_close(probs, torch.tensor([[0.5, 0.3, 0.16, 0.0]]) / 0.96)
    assert filtered_probs(logits, one(min_p=1.0)).tolist() == [[1.0, 0.0, 0.0, 0.0]]
    # Hotter, the second is nearer to the first.
    assert (filtered_probs(logits, one(temperature=4.0, min_p=0.5)) > 0).tolist() == [[True, True, True, True]]


def test_tokens_tied_with_the_last_one_kept_are_kept_too():
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 0.0]])
    kept = [[False, True, True, True, False]]
    assert (filtered_probs(logits, one(top_k=2)) > 0).tolist() == kept
    assert (filtered_probs(logits, one(top_p=0.7)) > 0).tolist() == kept


def test_a_token_without_weight_is_never_drawn():
    weights = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0], [0.0, 1e-45, 0.0, 0.0, 0.0]])
    for count in (1000, 1):
        tokens = draw(weights.repeat(count, 1), torch.arange(2 * count), torch.zeros(2 * count, dtype=torch.int64))
        assert set(tokens[::2].tolist()) <= {1, 3}
        assert set(tokens[1::2].tolist()) == {1}


@pytest.mark.parametrize("vocabulary", [7, 64, 100, 4096, 4100, 13_000])
def test_draws_have_the_distribution_of_the_weights(vocabulary):
    weights = torch.rand(1, vocabulary, generator=torch.Generator().manual_seed(vocabulary)) ** 3
    rows = torch.arange(20_000)
    tokens = torch.cat([draw(weights.expand(500, -1), part, part) for part in rows.split(500)])
    cells = 20  # of neighbouring tokens
    counts = torch.bincount(tokens * cells // vocabulary, minlength=cells)[:cells]
    shares = torch.zeros(cells, dtype=torch.float64)
    shares.index_add_(0, torch.arange(vocabulary) * cells // vocabulary, weights[0].double())
    kept = shares > 0
    expected = shares[kept] / shares.sum() * len(rows)
    assert chisquare(counts[kept].numpy(), expected.numpy()).pvalue > 1e-3


def test_a_row_without_a_distribution_gives_a_token_of_the_vocabulary():
    weights = torch.full((3, 100), math.nan)
    weights[1, 5:], weights[2] = 0.0, 0.0
    assert draw(weights, torch.arange(3), torch.arange(3)).max() < 100


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (([-1.0], [1.0], [0], [0]), r"temperature\[0\] = -1.0"),
        (([math.nan], [1.0], [0], [0]), r"temperature\[0\] = nan"),
        (([1.0, 1.0], [1.0, 1.5], [0, 0], [0, 0]), r"top_p\[1\] = 1.5"),
        (([1.0], [1.0], [-1], [0]), r"top_k\[0\] = -1"),
        (([1.0], [1.0], [2**70], [0]), rf"top_k\[0\] = {2**70}: must be 0 \(off\) or more, below 2\^63"),
        (([1.0], [1.0], [1.5], [0]), r"top_k\[0\] = 1.5: must be an integer"),
        (([1.0], [1.0], [0], [1.5]), r"seed\[0\] = 1.5: must be an integer"),
        (([1.0], [1.0], [0], [None]), r"seed\[0\] = None: must be an integer"),
        (([1.0], [1.0], [0], torch.tensor([7])), r"seed\[0\] = tensor\(7\): must be an integer"),
        ((["a"], [1.0], [0], [0]), r"temperature\[0\] = 'a': must be a number"),
        (([1.0], [10**400], [0], [0]), r"top_p\[0\] = 10+: must be a number that float32 holds"),
        ((1.0, [1.0], [0], [0]), r"temperature = 1.0: must be a sequence"),
        (([1.0], [1.0], [0], "1"), r"seed = '1': must be a sequence"),
        (([1.0], [1.0], [0], [0, 0]), "equally long"),
        (([1.0], [1.0], [0], [0], [math.nan]), r"min_p\[0\] = nan"),
        (([1.0], [1.0], [0], [0], [-0.5]), r"min_p\[0\] = -0.5"),
        (([1.0], [1.0], [0], [0], [0.1, 0.1]), "equally long"),
    ],
)
def test_bad_sampling_parameters_are_named(values, message):
    with pytest.raises(ValueError, match=message):
        SamplingBatch.of(*values[:4], min_p=values[4] if len(values) > 4 else None)


def test_seeds_are_any_integers():
    seeds = [2**80 + 5, -1, np.int64(3), np.uint64(2**64 - 1)]
    assert SamplingBatch.of([1.0] * 4, [1.0] * 4, [0] * 4, seeds).seed.tolist() == [5, -1, 3, -1]


def test_a_batch_knows_its_kind_without_asking_the_device():
    assert one(0.0, top_p=0.5).all_greedy
    assert not one(0.0, top_p=0.5).any_filter
    assert one(1e-9).all_greedy
    assert one(min_p=0.1).any_filter
    assert not one(0.0, min_p=0.1).any_filter
    mixed = SamplingBatch.of([0.0, 1.0], [1.0, 0.9], [0, 0], [2**64 - 1, 5])
    assert (mixed.all_greedy, mixed.any_greedy, mixed.any_filter) == (False, True, True)
    assert mixed.seed.tolist() == [-1, 5]
    assert mixed.rows(torch.tensor([0, 0, 1])).seed.tolist() == [-1, -1, 5]
