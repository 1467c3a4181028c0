"""The sampling parameters of a batch, as tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from slipstream_kernels.python_values import integers, numbers

GREEDY_BELOW = 1e-5
"""Temperatures below this count as 0: dividing float32 logits by less adds no information."""

HOTTEST = 1e6
"""The highest temperature. Above it, tokens with a logit of -inf would get a probability."""

_COLUMNS = (
    ("temperature", torch.float32),
    ("top_p", torch.float32),
    ("top_k", torch.int64),
    ("min_p", torch.float32),
    ("seed", torch.int64),
)


@dataclass(frozen=True, kw_only=True)
class SamplingBatch:
    """Sampling parameters of B requests (or rows), every tensor [B] on the logits' device.

    `temperature` float32, 0 is greedy; `top_p` float32, 1 is off; `top_k` int64, 0 is off; `min_p` float32, 0 is
    off; `seed` int64. The other fields summarise the tensors so that no code waits for the device. They are upper
    bounds: a feature that a summary excludes is not applied, even if a tensor sets it. A selection of rows keeps
    the summaries of its batch, which stay correct. `of` sets them; code that builds or replaces tensors must set them
    too.
    """

    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    min_p: Tensor
    seed: Tensor
    all_greedy: bool
    any_greedy: bool
    any_top_p: bool
    any_min_p: bool
    largest_top_k: int
    """The largest top-k of all requests, 0 if top-k is off everywhere."""

    @classmethod
    def of(
        cls,
        temperature: Sequence[float],
        top_p: Sequence[float],
        top_k: Sequence[int],
        seed: Sequence[int],
        device: torch.device | str = "cpu",
        *,
        min_p: Sequence[float] | None = None,
    ) -> SamplingBatch:
        """Build a batch from one value per request. Seeds are any integers, taken modulo 2^64. `min_p` None: off.

        Raises:
            ValueError: the lengths differ, or a value is not a number or out of range.
        """
        temperature, top_p = numbers("temperature", temperature), numbers("top_p", top_p)
        top_k, seed = integers("top_k", top_k), integers("seed", seed)
        min_p = [0.0] * len(temperature) if min_p is None else numbers("min_p", min_p)
        lengths = (len(temperature), len(top_p), len(top_k), len(seed), len(min_p))
        if len(set(lengths)) > 1:
            raise ValueError(f"temperature, top_p, top_k, seed and min_p must be equally long, not {lengths}")
        _check_ranges(temperature, top_p, top_k, min_p)
        heat = [value if value >= GREEDY_BELOW else 0.0 for value in temperature]
        signed = [(value + 2**63) % 2**64 - 2**63 for value in seed]
        return cls(
            temperature=torch.tensor(heat, dtype=torch.float32, device=device),
            top_p=torch.tensor(top_p, dtype=torch.float32, device=device),
            top_k=torch.tensor(top_k, dtype=torch.int64, device=device),
            min_p=torch.tensor(min_p, dtype=torch.float32, device=device),
            seed=torch.tensor(signed, dtype=torch.int64, device=device),
            all_greedy=not any(heat),
            any_greedy=not all(heat),
            any_top_p=any(t > 0 and p < 1 for t, p in zip(heat, top_p, strict=True)),
            any_min_p=any(t > 0 and m > 0 for t, m in zip(heat, min_p, strict=True)),
            largest_top_k=max((k for t, k in zip(heat, top_k, strict=True) if t > 0), default=0),
        )

    @property
    def any_filter(self) -> bool:
        """Whether top-k, top-p or min-p may drop anything."""
        return self.any_top_p or self.any_min_p or self.largest_top_k > 0

    @cached_property
    def fault(self) -> str | None:
        """The first defect in the tensors' shapes, types or devices; None if there is none. Any stride is valid, as
        `expand` repeats one value.

        Computed once, because a batch serves many calls.
        """
        first = self.temperature
        shape = list(first.shape) if isinstance(first, Tensor) and first.dim() == 1 else ["B"]
        for name, dtype in _COLUMNS:
            column = getattr(self, name)
            if not isinstance(column, Tensor):
                return f"{name} is {type(column).__name__}: must be a torch.Tensor"
            if list(column.shape) != shape:
                return f"{name} has shape {list(column.shape)}: must be [{shape[0]}]"
            if column.dtype != dtype:
                return f"{name} is {column.dtype}: must be {dtype}"
            if column.device != first.device:
                return f"{name} is on {column.device}: sampling.temperature is on {first.device}"
        return None

    def __len__(self) -> int:
        return self.temperature.size(0)

    def rows(self, index: Tensor) -> SamplingBatch:
        """The parameters of requests `index` (int64 [N]), one row each."""
        return self._each(lambda column: column.index_select(0, index))

    def expand(self, count: int) -> SamplingBatch:
        """Expand a batch of one request to `count` rows, without a copy."""
        return self._each(lambda column: column.expand(count))

    def _each(self, change: Callable[[Tensor], Tensor]) -> SamplingBatch:
        return replace(
            self,
            temperature=change(self.temperature),
            top_p=change(self.top_p),
            top_k=change(self.top_k),
            min_p=change(self.min_p),
            seed=change(self.seed),
        )


def _check_ranges(
    temperature: Sequence[float], top_p: Sequence[float], top_k: Sequence[int], min_p: Sequence[float]
) -> None:
    for i, (t, p, k, m) in enumerate(zip(temperature, top_p, top_k, min_p, strict=True)):
        if not 0 <= t <= HOTTEST:
            raise ValueError(f"temperature[{i}] = {t}: must be in [0, {HOTTEST:g}]")
        if not 0 <= p <= 1:
            raise ValueError(f"top_p[{i}] = {p}: must be in [0, 1]")
        if not 0 <= k < 2**63:
            raise ValueError(f"top_k[{i}] = {k}: must be 0 (off) or more, below 2^63")
        if not 0 <= m <= 1:
            raise ValueError(f"min_p[{i}] = {m}: must be in [0, 1]")
