"""Lossless verification of drafted tokens: a PyTorch reference behind one public function, `verify`.

`SamplingBatch` says how each request samples, `sample` chooses the draft's tokens, `verify` accepts or
rejects them.
"""

from slipstream_kernels.batch import SamplingBatch
from slipstream_kernels.counter_random import Purpose, uniform
from slipstream_kernels.filters import filtered_probs
from slipstream_kernels.sampling import sample
from slipstream_kernels.verification import Verification, verify

__all__ = ["Purpose", "SamplingBatch", "Verification", "filtered_probs", "sample", "uniform", "verify"]
