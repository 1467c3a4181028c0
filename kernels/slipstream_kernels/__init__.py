"""Lossless verification of drafted tokens.

`SamplingBatch` and `LogitAdjustments` hold each request's sampling parameters. `verify` computes the tokens of plain
decoding and accepts the drafted tokens that are equal to them; `sample` chooses tokens with the same noise. Each
operation has a PyTorch implementation and a GPU kernel behind one function. The kernels need the package `triton`,
which is imported at the first use of a kernel.
"""

from slipstream_kernels.adjustments import LogitAdjustments
from slipstream_kernels.batch import SamplingBatch
from slipstream_kernels.errors import KernelUnavailable
from slipstream_kernels.filters import filtered_probs
from slipstream_kernels.sampling import sample
from slipstream_kernels.spec_verify import Verification, verify

__all__ = [
    "KernelUnavailable",
    "LogitAdjustments",
    "SamplingBatch",
    "Verification",
    "filtered_probs",
    "sample",
    "verify",
]
