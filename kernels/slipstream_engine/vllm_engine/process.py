"""Makes Triton's stub a process in which vLLM runs.

vLLM starts its engine core and its workers as children of their own, by `sys.executable`, which in the stub is the
stub. The stub starts Python in the C locale, in which PyTorch cannot read its own files. And the numpy that the stub
needs is not the one that vLLM was built with: its children get theirs.
"""

from __future__ import annotations

import locale
import multiprocessing
import os
import shutil
import sys

from slipstream_engine.errors import CheckpointError

PYTHON = "SLIPSTREAM_VLLM_PYTHON"
PRELOAD = "SLIPSTREAM_VLLM_PRELOAD"
STUB_PACKAGES = "SLIPSTREAM_STUB_PACKAGES"
_CHILD_DEFAULTS = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


def prepare_process() -> None:
    """Set all of it up; numpy has been imported, vLLM and PyTorch have not. Reads three variables of the environment.

    `SLIPSTREAM_VLLM_PYTHON` is the interpreter of vLLM's children; without it, the first `python3` in PATH.
    `SLIPSTREAM_VLLM_PRELOAD` is what they preload, such as Intel's OpenMP. `SLIPSTREAM_STUB_PACKAGES` is a folder of
    packages that are the stub's alone.

    Raises:
        CheckpointError: there is no such interpreter.
    """
    locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    python = shutil.which(os.environ.get(PYTHON, "python3"))
    if python is None:
        raise CheckpointError(f"vLLM needs a Python interpreter: {PYTHON} is {os.environ.get(PYTHON, 'not set')!r}")
    sys.executable = python
    multiprocessing.set_executable(python)
    for name, value in _CHILD_DEFAULTS.items():
        os.environ.setdefault(name, value)
    os.environ.pop("VLLM_API_KEY", None)  # Triton's own access rules hold; the endpoints inside have no door
    if preload := os.environ.get(PRELOAD):
        os.environ["LD_PRELOAD"] = preload
    if hidden := os.environ.get(STUB_PACKAGES):
        sys.path[:] = [path for path in sys.path if path != hidden]  # a child starts with its parent's
