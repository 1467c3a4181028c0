"""Lossless verification of drafted tokens, and drafting from a request's own text.

`SamplingBatch` and `LogitAdjustments` hold each request's sampling parameters. `sample` chooses the draft's tokens and
`verify` accepts or rejects them. Each operation has a PyTorch implementation and a GPU kernel behind one function. The
kernels need the package `triton`, which is imported at the first use of a kernel.
"""

from slipstream_kernels.adjustments import LogitAdjustments
from slipstream_kernels.batch import SamplingBatch
from slipstream_kernels.counter_random import Purpose, step_purpose, uniform
from slipstream_kernels.errors import KernelUnavailable
from slipstream_kernels.filters import filtered_probs
from slipstream_kernels.ngram_lookup import ngram_lookup
from slipstream_kernels.sampling import sample
from slipstream_kernels.spec_verify import Verification, verify

__all__ = [
    "KernelUnavailable",
    "LogitAdjustments",
    "Purpose",
    "SamplingBatch",
    "Verification",
    "filtered_probs",
    "ngram_lookup",
    "sample",
    "step_purpose",
    "uniform",
    "verify",
]
