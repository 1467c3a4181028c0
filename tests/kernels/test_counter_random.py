"""The random numbers: the published generator, the same bits on every path, independent streams."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest
from slipstream_kernels import Purpose, step_purpose, uniform
from slipstream_kernels.counter_random import philox

# From `kat_vectors` of Random123, the authors' own implementation: counter, key, output.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]

int64s = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers_for_integers_and_tensors(counter, key, expected):
    assert philox(counter, key) == expected
    words = philox(tuple(torch.tensor([word]) for word in counter), tuple(torch.tensor([word]) for word in key))
    assert tuple(int(word) for word in words) == expected


@settings(derandomize=True, deadline=None, max_examples=50)
@given(st.lists(st.tuples(int64s, int64s, st.sampled_from(Purpose)), min_size=1, max_size=40))
def test_a_number_depends_only_on_its_own_seed_position_and_purpose(columns):
    seed, position, purpose = (torch.tensor(column) for column in zip(*columns, strict=True))
    together = uniform(seed, position, purpose)
    alone = [uniform(torch.tensor(s), torch.tensor(p), Purpose(q)) for s, p, q in columns]
    assert torch.equal(together, torch.stack(alone))
    assert bool(((together >= 0) & (together < 1)).all())


def test_numbers_fit_the_uniform_distribution_over_seeds_and_over_positions():
    counting = torch.arange(50_000)
    for numbers in (uniform(counting, torch.tensor(7), 0), uniform(torch.tensor(7), counting, 0)):
        assert numbers.dtype == torch.float64
        assert kstest(numbers.numpy(), "uniform").pvalue > 1e-3
        assert len(numbers.unique()) == len(numbers)


@pytest.mark.parametrize(("first", "second"), [(a, b) for a in Purpose for b in Purpose if a < b])
def test_purposes_have_independent_streams(first, second):
    seeds, position = torch.arange(50_000), torch.tensor(3)
    cells = [(uniform(seeds, position, purpose) * 8).long() for purpose in (first, second)]
    counts = torch.bincount(cells[0] * 8 + cells[1], minlength=64)
    assert chisquare(counts.numpy()).pvalue > 1e-3


def test_neighbouring_positions_are_independent():
    seeds = torch.arange(50_000)
    cells = [(uniform(seeds, torch.tensor(position), Purpose.TARGET) * 8).long() for position in (4, 5)]
    counts = torch.bincount(cells[0] * 8 + cells[1], minlength=64)
    assert chisquare(counts.numpy()).pvalue > 1e-3


def test_numbers_of_a_block_are_those_of_no_other_step_or_purpose():
    # The token at position 9 may be the first of a step or, in a step before, the third of a block.
    numbers = {(p, j): step_purpose(p, j) for p in Purpose for j in range(9)}
    assert len(set(numbers.values())) == len(numbers)
    assert [step_purpose(p, 0) for p in Purpose] == list(Purpose)
    steps = torch.arange(3)
    assert step_purpose(Purpose.ACCEPT, steps).tolist() == [step_purpose(Purpose.ACCEPT, j) for j in range(3)]
    seeds, position = torch.arange(50_000), torch.tensor(9)
    cells = [(uniform(seeds, position, step_purpose(Purpose.ACCEPT, j)) * 8).long() for j in (0, 2)]
    assert chisquare(torch.bincount(cells[0] * 8 + cells[1], minlength=64).numpy()).pvalue > 1e-3
