"""Verification of drafted tokens: one public function, `verify`, implemented in PyTorch and as a GPU kernel."""

from slipstream_kernels.spec_verify.result import Verification
from slipstream_kernels.spec_verify.verify import verify

__all__ = ["Verification", "verify"]
