"""Noise of a draw: a function of (seed, position, index) alone, with one key per (seed, position).

The generator is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014),
used with a counter: value i of a key is the i-th value of the generator that starts at the key. It needs two
multiplications per value, so the noise of a draw on the CPU takes about ten array operations. The bits are the same on
every device and do not depend on the other requests of the batch.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

GAMMA: Final = 0x9E3779B97F4A7C15
MIX_1: Final = 0xBF58476D1CE4E5B9
MIX_2: Final = 0x94D049BB133111EB
"""Constants of SplitMix64: the increment of the counter, and the multipliers of the mixing function."""

_WORD = 2**64 - 1
_FEW = 8
"""Up to this many keys, Python integers are faster than array operations."""


def signed(word: int) -> int:
    """The int64 with the bits of `word`, which is taken modulo 2^64."""
    return ((word + 2**63) & _WORD) - 2**63


def exponentials(seed: Tensor, position: Tensor, count: int) -> Any:
    """Noise of N draws: `count` independent, exponentially distributed numbers each, float64 [N, count], above 0.

    Args:
        seed: int64 [N].
        position: int64 [N], the absolute position of each drawn token.
        count: numbers per draw. A smaller count gives the first numbers of a larger one.

    Returns:
        A NumPy array if the arguments are on the CPU, else a tensor on their device.
    """
    # 52 bits and a half: never 0 and never 1, so every number is finite and above 0.
    if seed.device.type == "cpu":
        words = mix(_keys(seed, position)[:, None] + _counters(count))
        return -np.log(((words >> np.uint64(12)) + 0.5) * 2.0**-52)
    counters = torch.arange(1, count + 1, device=seed.device) * signed(GAMMA)
    words = mix(_key(seed, position)[:, None] + counters)
    return -((_shifted(words, 12).to(torch.float64) + 0.5) * 2.0**-52).log()


@lru_cache(maxsize=16)
def _counters(count: int) -> Any:
    """The increments of a key's first `count` numbers: uint64 [count]."""
    return np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GAMMA)


def _keys(seed: Tensor, position: Tensor) -> Any:
    """The keys of N draws on the CPU: uint64 [N]."""
    if seed.size(0) <= _FEW:
        pairs = zip(seed.tolist(), position.tolist(), strict=True)
        return np.array([_mix_word(_mix_word(s) + p * GAMMA) for s, p in pairs], dtype=np.uint64)
    return _key(seed.numpy().view(np.uint64), position.numpy().view(np.uint64))


def _key(seed: Any, position: Any) -> Any:
    """The key of each (seed, position), in the type of the arguments."""
    return mix(mix(seed) + position * _factor(position, GAMMA))


def mix(words: Any) -> Any:
    """The mixing function of SplitMix64, of uint64 arrays or int64 tensors, in which products wrap."""
    words = (words ^ _shifted(words, 30)) * _factor(words, MIX_1)
    words = (words ^ _shifted(words, 27)) * _factor(words, MIX_2)
    return words ^ _shifted(words, 31)


def _shifted(words: Any, bits: int) -> Any:
    """`words` shifted to the right, with zeros from the left."""
    return (words >> bits) & (2 ** (64 - bits) - 1) if isinstance(words, Tensor) else words >> np.uint64(bits)


def _factor(words: Any, factor: int) -> Any:
    """A 64-bit factor in the type of `words`."""
    return signed(factor) if isinstance(words, Tensor) else np.uint64(factor)


def _mix_word(word: int) -> int:
    """`mix` of a Python integer, taken modulo 2^64, as an integer in [0, 2^64)."""
    word &= _WORD
    word = (word ^ (word >> 30)) * MIX_1 & _WORD
    word = (word ^ (word >> 27)) * MIX_2 & _WORD
    return word ^ (word >> 31)
