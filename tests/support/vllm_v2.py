"""vLLM's V2 model runner, which GPUs use, on CPUs.

vLLM's worker for CPUs has a V2 runner. Its kernels are written for Triton, so they run in Triton's interpreter, by the
start-up module of `vllm_v2_startup`. Nothing of vLLM is changed. CUDA graphs, and with them adaptive verification, do
not exist there. The release of Triton is not that of this project's environment: in the interpreter of Triton 3.9,
vLLM's kernels fail ("mask has unsupported dtype").
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.extra_packages import extra_packages

_STARTUP = Path(__file__).with_name("vllm_v2_startup")
_REQUIREMENTS = Path(__file__).with_suffix(".txt")


def v2_environment() -> dict[str, str]:
    """The environment variables of vLLM's processes."""
    return {
        "PYTHONPATH": os.pathsep.join((str(_STARTUP), str(extra_packages(_REQUIREMENTS)))),
        "TRITON_INTERPRET": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
    }
