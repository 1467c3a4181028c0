"""Turns gradients off: the results of this package's functions carry none."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Result = TypeVar("Result")


def without_grad(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Run `function` under `torch.no_grad`. Entering it costs more than a microsecond, so it is skipped where gradients
    are off already."""

    @wraps(function)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        if not torch.is_grad_enabled():
            return function(*args, **kwargs)
        with torch.no_grad():
            return function(*args, **kwargs)

    return run
