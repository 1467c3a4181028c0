"""The noise: the published generator, the same bits on every path, independent numbers of the right distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest
from slipstream_kernels.counter_random import GAMMA, exponentials, mix, signed

from tests.kernels.oracle import exponential

# The first values of SplitMix64 from state 1234567, as in its authors' reference implementation and other libraries.
KNOWN_ANSWERS = [
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
]

int64s = st.integers(-(2**63), 2**63 - 1)


def test_the_generator_gives_the_published_answers():
    states = torch.tensor([signed(1234567 + GAMMA * (i + 1)) for i in range(5)])
    for words in (mix(states), mix(states.numpy().view(np.uint64))):
        assert [word % 2**64 for word in words.tolist()] == KNOWN_ANSWERS


@settings(derandomize=True, deadline=None, max_examples=50)
@given(st.lists(st.tuples(int64s, st.integers(0, 2**63 - 1)), min_size=1, max_size=20), st.integers(1, 9))
def test_a_number_depends_only_on_its_own_seed_position_and_index(pairs, count):
    seed, position = (torch.tensor(column) for column in zip(*pairs, strict=True))
    together = exponentials(seed, position, count)
    assert together.shape == (len(pairs), count)
    for i, pair in enumerate(pairs):
        assert together[i].tolist() == pytest.approx([exponential(*pair, index) for index in range(count)], rel=1e-14)
        alone = exponentials(seed[i : i + 1], position[i : i + 1], count + 3)[0, :count]
        assert together[i].tolist() == alone.tolist()


def test_numbers_fit_the_exponential_distribution_over_seeds_positions_and_indices():
    counting, same = torch.arange(20_000), torch.full((20_000,), 7)
    for numbers in (
        exponentials(counting, same, 1)[:, 0],
        exponentials(same, counting, 2)[:, 1],
        exponentials(same[:1], same[:1], 20_000)[0],
    ):
        assert kstest(numbers, "expon").pvalue > 1e-3
        assert len(set(numbers.tolist())) == len(numbers)


def cells(numbers):
    """Eighths of the distribution, int64."""
    return torch.as_tensor(numbers).neg().exp().mul(8).long()


@pytest.mark.parametrize("other", ["position", "index", "seed"])
def test_neighbours_are_independent(other):
    seeds, nine = torch.arange(40_000), torch.full((40_000,), 9)
    first = exponentials(seeds, nine, 2)
    second = {
        "position": lambda: exponentials(seeds, nine + 1, 1)[:, 0],
        "index": lambda: first[:, 1],
        "seed": lambda: exponentials(seeds + 1, nine, 1)[:, 0],
    }[other]()
    counts = torch.bincount(cells(first[:, 0]) * 8 + cells(second), minlength=64)
    assert chisquare(counts.numpy()).pvalue > 1e-3
