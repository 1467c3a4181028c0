"""Checks of Python values before they become tensors, which would round, cut off or overflow without a word."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral, Real

import torch

LARGEST = torch.finfo(torch.float32).max
SMALLEST = torch.finfo(torch.float32).tiny


def listed(name: str, values: object) -> list[object]:
    """`values` as a list.

    Raises:
        ValueError: they are not several values, or a text.
    """
    if not isinstance(values, Iterable) or isinstance(values, str) or getattr(values, "ndim", 1) != 1:
        raise ValueError(f"{name} = {values!r}: must be a sequence with a value for each request")
    return list(values)


def integer(name: str, value: object) -> int:
    """`value`, Python's or NumPy's integer.

    Raises:
        ValueError: it is something else, as 1.5, None or a tensor.
    """
    if not isinstance(value, Integral):
        raise ValueError(f"{name} = {value!r}: must be an integer")
    return int(value)


def number(name: str, value: object) -> float:
    """`value`, Python's or NumPy's number, NaN and infinities included.

    Raises:
        ValueError: it is something else, as None, a text or a tensor.
    """
    if not isinstance(value, Real):
        raise ValueError(f"{name} = {value!r}: must be a number")
    try:
        return float(value)
    except OverflowError:  # an integer beyond float64
        raise ValueError(f"{name} = {value!r}: must be a number that float32 holds") from None


def integers(name: str, values: object) -> list[int]:
    """`values`, each an `integer`."""
    return [integer(f"{name}[{i}]", value) for i, value in enumerate(listed(name, values))]


def numbers(name: str, values: object) -> list[float]:
    """`values`, each a `number`."""
    return [number(f"{name}[{i}]", value) for i, value in enumerate(listed(name, values))]
