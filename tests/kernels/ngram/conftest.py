"""Both implementations of prompt look-up, and outputs that hold no zeros by chance."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from slipstream_kernels.ngram_lookup import NgramDrafts, ngram_lookup


@pytest.fixture(params=["reference", "kernel"])
def lookup(request: pytest.FixtureRequest) -> Callable[..., NgramDrafts]:
    """`ngram_lookup` with its backend fixed."""
    if request.param == "kernel" and sys.platform != "linux":
        pytest.skip("triton is for Linux")
    return partial(ngram_lookup, backend=request.param)


@pytest.fixture
def poisoned_outputs() -> Iterator[None]:
    """What is allocated holds the greatest number of its type until it is written."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(1, dtype=torch.int64).item() == 2**63 - 1
    yield
    torch.use_deterministic_algorithms(False)
