"""Prepares Triton's stub process for vLLM.

vLLM starts its engine core and its workers as child processes with `sys.executable`, which in the stub is the stub
itself. The stub starts Python in the C locale, in which PyTorch cannot read its own files. The stub also needs another
numpy than vLLM, so the children must not import the stub's packages.
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
    """Prepare the process. Call it after numpy is imported, and before vLLM and PyTorch. Reads the environment.

    `SLIPSTREAM_VLLM_PYTHON` is the interpreter of vLLM's child processes (default: the first `python3` in PATH).
    `SLIPSTREAM_VLLM_PRELOAD` lists libraries that they preload, such as Intel's OpenMP. `SLIPSTREAM_STUB_PACKAGES` is a
    folder of packages for the stub only.

    Raises:
        CheckpointError: the interpreter does not exist.
    """
    locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    python = shutil.which(os.environ.get(PYTHON, "python3"))
    if python is None:
        raise CheckpointError(f"vLLM needs a Python interpreter: {PYTHON} is {os.environ.get(PYTHON, 'not set')!r}")
    sys.executable = python
    multiprocessing.set_executable(python)
    for name, value in _CHILD_DEFAULTS.items():
        os.environ.setdefault(name, value)
    os.environ.pop("VLLM_API_KEY", None)  # Triton controls access; vLLM's endpoints are not exposed
    if preload := os.environ.get(PRELOAD):
        os.environ["LD_PRELOAD"] = preload
    if hidden := os.environ.get(STUB_PACKAGES):
        sys.path[:] = [path for path in sys.path if path != hidden]  # children inherit it


def lower_priority(nice: int) -> None:
    """Lower the priority of this thread, and of the threads and processes that it starts, by `nice`.

    Other threads of Triton's stub keep theirs, among them the one of its heartbeat. If a heartbeat is late while the
    model loads, Triton 2.51 gives the model up (see `slipstream_engine.pipe.load_watch`).
    """
    if nice:
        os.nice(nice)
