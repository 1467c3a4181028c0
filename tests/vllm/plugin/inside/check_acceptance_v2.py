"""Which rows a step emits on the V2 model runner, beside the rule in plain Python."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from slipstream_vllm.acceptance_v2 import emitted_rows

LONGEST = 4
WORDS = 3


def expected(drawn: list[int], inputs: list[int]) -> list[int]:
    """The rows of one request: the draws up to the first one that is not the next row's input."""
    for row, token in enumerate(drawn[:-1]):
        if token != inputs[row + 1]:
            return drawn[: row + 1]
    return drawn


@pytest.mark.parametrize("seed", range(50))
def test_a_request_emits_its_rows_up_to_the_first_difference(seed: int) -> None:
    draw = np.random.default_rng(seed)
    counts = draw.integers(1, LONGEST + 2, 6)
    first = np.concatenate([[0], np.cumsum(counts)])
    drawn = draw.integers(0, WORDS, first[-1])
    # A draft that the grammar excludes is -1. A request's first input may be any token.
    inputs = draw.integers(-1, WORDS, first[-1])
    tokens, emitted = emitted_rows(torch.tensor(drawn), torch.tensor(inputs), torch.tensor(first), LONGEST)
    assert emitted.dtype == torch.int32
    assert tokens.shape == (6, LONGEST + 1)
    rows = [slice(first[index], first[index + 1]) for index in range(6)]
    found = [row[:count].tolist() for row, count in zip(tokens, emitted.tolist(), strict=True)]
    assert found == [expected(drawn[row].tolist(), inputs[row].tolist()) for row in rows]
