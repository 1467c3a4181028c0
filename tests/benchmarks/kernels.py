"""The verification kernel: the issue's figures, in one run. `slipstream_kernels.spec_verify.bench`, see there.

    python -m tests.benchmarks.kernels [--quick] [--tune] [--out results.json]

Without a GPU it prints predictions and measures nothing.
"""

from __future__ import annotations

import sys

from slipstream_kernels.spec_verify.bench import main

if __name__ == "__main__":
    sys.exit(main())
