"""Counter-based random numbers: a function of (seed, position, purpose) alone.

The generator is Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), which CUDA and
the Triton language also use, in 64-bit integers. The bits are the same on every device and do not depend on the other
requests of the batch. The key is the seed; the counter is (position, purpose), so each purpose has its own stream.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_FEW = 8
"""Up to this many numbers, Python integers are faster than the hundred array operations of one Philox block."""


class Purpose(IntEnum):
    """The decision that a random number is used for. Numbers of different purposes are independent."""

    DRAFT = 0
    """The draft's own sampling."""
    ACCEPT = 1
    """Acceptance of a drafted token."""
    RESIDUAL = 2
    """The token that replaces the first rejected one."""
    TARGET = 3
    """A token from the target's distribution: plain decoding and the bonus token."""


def step_purpose(purpose: Purpose, step: int | Tensor) -> int | Tensor:
    """The purpose of the random number for drafted token `step` (0 for the first) of a block.

    The tokens of a block are accepted together, so the number drawn for a rejected token has influenced the outcome.
    The next verification starts at the same position and must not reuse that number: (position, step) is unique.
    """
    return int(purpose) + len(Purpose) * step


def uniform(seed: Tensor, position: Tensor, purpose: int | Tensor) -> Tensor:
    """Uniform numbers in [0, 1): float64, of the shape that the arguments (int64) broadcast to.

    The numbers are multiples of 2^-52. Zero is possible and one is not. With a strict `<` an event of probability 0
    therefore never happens, and one of probability 1 always does. 52 bits instead of 53 keep u * total below total
    after rounding.
    """
    stream = (purpose,) if isinstance(purpose, Tensor) else ()
    columns = torch.broadcast_tensors(seed, position, *stream)
    constant = () if isinstance(purpose, Tensor) else (purpose,)
    if seed.device.type == "cpu" and columns[0].numel() <= _FEW:
        rows = zip(*(column.flatten().tolist() for column in columns), strict=True)
        numbers = [_bits(*row, *constant) * 2.0**-52 for row in rows]
        return torch.tensor(numbers, dtype=torch.float64).view(columns[0].shape)
    if seed.device.type == "cpu":
        bits = torch.from_numpy(_bits(*(column.numpy() for column in columns), *constant))
    else:
        bits = _bits(*columns, *constant)
    return bits.to(torch.float64).mul_(2.0**-52)


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[Any, Any]) -> tuple[Any, Any, Any, Any]:
    """One block of Philox-4x32-10: four words of 32 random bits.

    Counter and key are words in [0, 2^32): Python integers, or int64 arrays or tensors that broadcast
    together.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # 64-bit products may wrap into the sign bit; the masked bits are still correct. Only the words that are
        # multiplied next are masked; the other two keep their high bits until the end.
        low, high = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = ((high >> 32) ^ c1 ^ k0) & _WORD, high
        c2, c3 = ((low >> 32) ^ c3 ^ k1) & _WORD, low
        k0, k1 = k0 + 0x9E3779B9, k1 + 0xBB67AE85
    return c0, c1 & _WORD, c2, c3 & _WORD


def _bits(seed: Any, position: Any, purpose: Any) -> Any:
    """52 random bits, in the type of the arguments."""
    counter = (position & _WORD, (position >> 32) & _WORD, purpose, 0)
    words = philox(counter, (seed & _WORD, (seed >> 32) & _WORD))
    return (words[0] << 20) | (words[1] >> 12)
