"""Where the kernels run: compiled on a GPU, else in Triton's interpreter, with the same tests.

The interpreter is chosen by an environment variable that the Triton language reads while a module with kernels is
imported. This file is imported before the tests of its folder, and nothing before it may import such a module. Tests
that compile ahead of time take a process of their own, without the variable.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from slipstream_kernels import Verification, verify

from tests.kernels import interpreter

CUDA = torch.cuda.is_available()

if not CUDA:
    # A kernel that was decorated without the variable wants a GPU, whatever is set afterwards.
    early = [name for name in sys.modules if name.startswith("slipstream_kernels.") and "kernel_" in name]
    if early and "TRITON_INTERPRET" not in os.environ:
        raise RuntimeError(f"imported before the interpreter was chosen: {', '.join(early)}")
    os.environ["TRITON_INTERPRET"] = "1"
    if find_spec("triton"):
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
