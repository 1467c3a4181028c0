"""Replaces a function of vLLM with a wrapper, at most once per process."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

_MARK = "_slipstream_wrapped"


def wrap(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace `owner.name` with `make(original)`. A second call does nothing, because vLLM may load plugins repeatedly.

    Raises: `AttributeError` if `owner` has no such function.
    """
    original = getattr(owner, name)
    if getattr(original, _MARK, False):
        return
    replacement = wraps(original)(make(original))
    setattr(replacement, _MARK, True)
    setattr(owner, name, replacement)


def is_wrapped(owner: Any, name: str) -> bool:
    """Whether `wrap` replaced this function in this process."""
    return bool(getattr(getattr(owner, name, None), _MARK, False))
