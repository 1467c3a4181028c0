"""vLLM's V2 model runner, which GPUs use, on CPUs.

vLLM's worker for CPUs has a V2 runner. Its kernels are written for Triton, so they run in Triton's interpreter: the
Triton of this project's environment, with the start-up module of `vllm_v2_startup`. Nothing of vLLM is changed. CUDA
graphs, and with them adaptive verification, do not exist there.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

_STARTUP = Path(__file__).with_name("vllm_v2_startup")


def v2_environment(folder: Path) -> dict[str, str]:
    """The environment variables of vLLM's processes. `folder` is empty, and gets a link to Triton."""
    found = find_spec("triton")
    assert found is not None
    assert found.submodule_search_locations is not None
    [package] = found.submodule_search_locations
    (folder / "triton").symlink_to(package)
    return {
        "PYTHONPATH": os.pathsep.join((str(_STARTUP), str(folder))),
        "TRITON_INTERPRET": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
    }
