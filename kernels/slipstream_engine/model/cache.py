"""The static key-value cache: one fixed slot of positions per running request, allocated once."""

from __future__ import annotations

import heapq

import torch
from torch import Tensor

from slipstream_engine.errors import CheckpointError
from slipstream_engine.model.config import ModelConfig


class SlotCache:
    """Keys and values of every layer for `slots` requests of at most `context_tokens` each.

    A layer's keys are [slots * context_tokens, kv_heads, head_dim]: position p of slot s is row
    `s * context_tokens + p`. Rows past a request's length hold stale values (rejected drafts, earlier requests), which
    are masked until they are overwritten. `clear` still zeroes them when a request ends, because 0 * NaN is NaN and one
    request's overflow must not reach the next.
    """

    def __init__(
        self, config: ModelConfig, slots: int, context_tokens: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.slots, self.context_tokens = slots, context_tokens
        shape = (slots * context_tokens, config.kv_heads, config.head_dim)
        try:
            self.keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.layers)]
            self.values = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.layers)]
        except RuntimeError as exc:  # PyTorch is out of memory, on either device
            size = self.size_bytes(config, slots, context_tokens, dtype) / 2**30
            raise CheckpointError(
                f"the cache of {slots} slots of {context_tokens} tokens needs {size:.1f} GiB and cannot be allocated: "
                "lower the number of slots or the context"
            ) from exc

    @staticmethod
    def size_bytes(config: ModelConfig, slots: int, context_tokens: int, dtype: torch.dtype) -> int:
        """The memory of such a cache."""
        return 2 * config.layers * slots * context_tokens * config.kv_heads * config.head_dim * dtype.itemsize

    def write(self, layer: int, rows: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store `keys` and `values` [tokens, kv_heads, head_dim] at `rows` [tokens] i64."""
        self.keys[layer].index_copy_(0, rows, keys)
        self.values[layer].index_copy_(0, rows, values)

    def clear(self, slot: int, length: int) -> None:
        """Zero the first `length` positions of `slot`."""
        first = slot * self.context_tokens
        for tensor in (*self.keys, *self.values):
            tensor[first : first + length].zero_()

    def read(self, layer: int, first_slot: int, slots: int, length: int) -> tuple[Tensor, Tensor]:
        """Views of keys and values [slots, kv_heads, length, head_dim] of `slots` consecutive slots."""
        keys = self._view(self.keys[layer], first_slot, slots, length)
        return keys, self._view(self.values[layer], first_slot, slots, length)

    def _view(self, tensor: Tensor, first_slot: int, slots: int, length: int) -> Tensor:
        context = self.context_tokens
        rows = tensor[first_slot * context : (first_slot + slots) * context]
        return rows.view(slots, context, *tensor.shape[1:])[:, :length].transpose(1, 2)


class SlotPool:
    """Allocates slot numbers, the lowest first, so that the slots in use stay close together."""

    def __init__(self, slots: int) -> None:
        self._free = list(range(slots))

    def __len__(self) -> int:
        return len(self._free)

    def take(self) -> int:
        return heapq.heappop(self._free)

    def give_back(self, slot: int) -> None:
        heapq.heappush(self._free, slot)
