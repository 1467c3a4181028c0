"""Rotary position embeddings (Su et al., RoFormer, 2104.09864) as complex rotations.

Checkpoints in Hugging Face format store the two halves of a rotated pair `head_dim / 2` apart. The loader makes them
adjacent (`interleave_rows`), so one complex multiplication rotates all pairs. Scores do not change, because queries and
keys are permuted equally.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from slipstream_engine.errors import CheckpointError
from slipstream_engine.model.config import RopeConfig


def rotations(config: RopeConfig, head_dim: int, context_tokens: int) -> Tensor:
    """The rotation of every position: complex64 [context_tokens, head_dim / 2].

    Raises:
        CheckpointError: the scaling is not implemented or lacks a parameter.
    """
    frequencies, amplitude = _frequencies(config, head_dim)
    angles = torch.outer(torch.arange(context_tokens, dtype=torch.float32), frequencies)
    return torch.polar(torch.full_like(angles, amplitude), angles)


def apply_rotation(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotate `x` [tokens, heads, head_dim] (pairs interleaved) by `rotation` [tokens, 1, head_dim / 2]."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    rotated: Tensor = torch.view_as_real(pairs * rotation).flatten(-2).type_as(x)
    return rotated


def interleave_rows(weight: Tensor, head_dim: int) -> Tensor:
    """Reorder rows [heads * head_dim, ...] from two halves per head to adjacent pairs."""
    halves: Tensor = weight.unflatten(0, (-1, 2, head_dim // 2))
    return halves.transpose(1, 2).flatten(0, 2).contiguous()


def _frequencies(config: RopeConfig, head_dim: int) -> tuple[Tensor, float]:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    base = 1.0 / (config.theta**exponents)
    try:
        if config.kind == "default":
            return base, 1.0
        if config.kind == "linear":
            return base / float(config.parameters["factor"]), 1.0
        if config.kind == "llama3":
            return _llama3(base, config.parameters), 1.0
        if config.kind == "yarn":
            return _yarn(base, config, head_dim)
    except KeyError as exc:
        raise CheckpointError(f"rope scaling {config.kind!r}: {exc.args[0]!r} is missing") from exc
    except (TypeError, ValueError, ZeroDivisionError) as exc:
        raise CheckpointError(f"rope scaling {config.kind!r}: {dict(config.parameters)}: {exc}") from exc
    raise CheckpointError(f"rope scaling {config.kind!r} is not supported, only default, linear, llama3 and yarn")


def _llama3(base: Tensor, parameters: Mapping[str, Any]) -> Tensor:
    """Llama 3.1: low frequencies are divided by `factor`, high ones kept, with a ramp between."""
    factor = float(parameters["factor"])
    low, high = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
    original = float(parameters["original_max_position_embeddings"])
    wavelength = 2 * math.pi / base
    ramp = ((original / wavelength - low) / (high - low)).clamp(0, 1)
    return (1 - ramp) * base / factor + ramp * base


def _yarn(base: Tensor, config: RopeConfig, head_dim: int) -> tuple[Tensor, float]:
    """YaRN (Peng et al., 2309.00071), with transformers' defaults for missing parameters."""
    parameters = config.parameters
    original = float(parameters.get("original_max_position_embeddings") or parameters["max_position_embeddings"])
    factor = float(parameters.get("factor") or parameters["max_position_embeddings"] / original)
    fast, slow = float(parameters.get("beta_fast") or 32), float(parameters.get("beta_slow") or 1)

    def dimension(turns: float) -> float:
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(config.theta))

    first, last = dimension(fast), dimension(slow)
    if parameters.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - first) / max(last - first, 0.001)
    extrapolate = 1 - ramp.clamp(0, 1)
    frequencies = base / factor * (1 - extrapolate) + base * extrapolate
    return frequencies, _yarn_amplitude(parameters, factor)


def _yarn_amplitude(parameters: Mapping[str, Any], factor: float) -> float:
    given = parameters.get("attention_factor")
    if given is not None:
        return float(given)

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    mscale, mscale_all = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return scale(float(mscale)) / scale(float(mscale_all)) if mscale and mscale_all else scale(1.0)
