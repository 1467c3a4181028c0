"""Choice of the implementation: the PyTorch one ("reference"), or the kernel, which needs a GPU and `triton`."""

from __future__ import annotations

from functools import cache
from typing import Literal

import torch

from slipstream_kernels.errors import KernelUnavailable

Backend = Literal["auto", "reference", "kernel"]


def use_kernel(backend: str, device: torch.device) -> bool:
    """Whether the kernel handles tensors on `device`. `auto` selects it on a CUDA device if `triton` is installed.

    Raises:
        KernelUnavailable: `backend` is "kernel", and `triton` is not installed or `device` is not a GPU.
        ValueError: `backend` is not one of the three.
    """
    if backend == "reference":
        return False
    if backend == "auto":
        return device.type == "cuda" and missing_package() is None
    if backend != "kernel":
        raise ValueError(f"backend = {backend!r}: must be 'auto', 'reference' or 'kernel'")
    missing = missing_package()
    if missing is not None:
        raise KernelUnavailable(missing)
    if device.type != "cuda" and not interpreted():
        raise KernelUnavailable(
            f"the kernel needs a GPU, and the tensors are on {device.type!r}: move them, take backend='reference', or "
            "set TRITON_INTERPRET=1 before the start to run it in the interpreter"
        )
    return True


@cache
def missing_package() -> str | None:
    """Message that names the package to install before a kernel can run; None if nothing is missing."""
    try:
        import triton  # noqa: F401 - a heavy import, and not everywhere installed
    except ImportError as error:
        return f"the kernel needs the package 'triton' (pip install 'slipstream-serving[gpu]'): {error}"
    return None


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on any device. Needs `triton`."""
    from triton import knobs

    return bool(knobs.runtime.interpret)
