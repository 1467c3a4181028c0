"""The precision of trainings: bfloat16 where the device computes with it, else float32."""

from __future__ import annotations

import torch


def training_dtype(device_type: str) -> torch.dtype:
    """bfloat16, except on CPUs without AVX-512: these convert each operand, which takes ten times as long."""
    if device_type == "cpu" and torch.backends.cpu.get_cpu_capability() != "AVX512":
        return torch.float32
    return torch.bfloat16


def mixed_precision(device_type: str) -> torch.autocast:
    """The context of a forward pass with float32 weights."""
    dtype = training_dtype(device_type)
    return torch.autocast(device_type, torch.bfloat16, enabled=dtype == torch.bfloat16)
