"""Lossless verification of drafted tokens.

`SamplingBatch` and `LogitAdjustments` hold each request's sampling parameters. `verify` computes the tokens of plain
decoding and accepts the drafted tokens that are equal to them: in PyTorch, or with a GPU kernel. The kernel needs the
package `triton`, which is imported at its first use.
"""

from slipstream_kernels.adjustments import LogitAdjustments
from slipstream_kernels.batch import SamplingBatch
from slipstream_kernels.errors import KernelUnavailable
from slipstream_kernels.spec_verify import Verification, verify

__all__ = [
    "KernelUnavailable",
    "LogitAdjustments",
    "SamplingBatch",
    "Verification",
    "verify",
]
