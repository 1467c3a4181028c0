"""Where the kernels run: compiled on a GPU, else in Triton's interpreter, with the same tests.

The interpreter is chosen by an environment variable, which `tests/conftest.py` sets. Tests that compile ahead of time
take a process of their own, without the variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from slipstream_kernels import Verification, verify

from tests.kernels import interpreter

CUDA = torch.cuda.is_available()
torch.set_num_threads(1)  # tiny tensors: a second thread waits, and takes a processor to do so

if not CUDA:
    if isinstance(tl.sum, triton.JITFunction):
        raise RuntimeError("triton was imported before tests/conftest.py chose its interpreter: kernels want a GPU now")
    interpreter.make_quicker()


@pytest.fixture(autouse=True)
def _infinities_are_expected() -> Iterator[None]:
    """The interpreter computes with NumPy, which warns of -inf and NaN as a GPU does not."""
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(scope="session")
def device() -> str:
    """Where the tensors of the kernel's tests lie."""
    return "cuda" if CUDA else "cpu"


@pytest.fixture(params=["reference", "kernel"])
def verify_backend(request: pytest.FixtureRequest) -> Callable[..., Verification]:
    """`verify` with its backend fixed. `.keywords["backend"]` is its name."""
    return partial(verify, backend=request.param)
