"""Checks of Python values before conversion to tensors, which would round, truncate or overflow silently."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral, Real

import torch

LARGEST = torch.finfo(torch.float32).max
SMALLEST = torch.finfo(torch.float32).tiny


def listed(name: str, values: object) -> list[object]:
    """`values` as a list.

    Raises:
        ValueError: `values` is not a sequence, or is a string.
    """
    if not isinstance(values, Iterable) or isinstance(values, str) or getattr(values, "ndim", 1) != 1:
        raise ValueError(f"{name} = {values!r}: must be a sequence with a value for each request")
    return list(values)


def integer(name: str, value: object) -> int:
    """`value` as a Python integer; NumPy integers are accepted.

    Raises:
        ValueError: `value` is not an integer, for example 1.5, None or a tensor.
    """
    if not isinstance(value, Integral):
        raise ValueError(f"{name} = {value!r}: must be an integer")
    return int(value)


def number(name: str, value: object) -> float:
    """`value` as a Python float; NumPy numbers, NaN and infinities are accepted.

    Raises:
        ValueError: `value` is not a number, for example None, a string or a tensor.
    """
    if not isinstance(value, Real):
        raise ValueError(f"{name} = {value!r}: must be a number")
    try:
        return float(value)
    except OverflowError:  # an integer beyond float64
        raise ValueError(f"{name} = {value!r}: must be a number that float32 holds") from None


def integers(name: str, values: object) -> list[int]:
    """`values` as Python integers."""
    return [integer(f"{name}[{i}]", value) for i, value in enumerate(listed(name, values))]


def numbers(name: str, values: object) -> list[float]:
    """`values` as Python floats."""
    return [number(f"{name}[{i}]", value) for i, value in enumerate(listed(name, values))]
