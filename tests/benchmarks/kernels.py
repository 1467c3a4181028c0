"""Benchmark of the verification kernel, see `slipstream_kernels.spec_verify.bench`.

    python -m tests.benchmarks.kernels [--quick] [--out results.json]

Without a GPU it reports that nothing was timed.
"""

from __future__ import annotations

import sys

from slipstream_kernels.spec_verify.bench import main

if __name__ == "__main__":
    sys.exit(main())
