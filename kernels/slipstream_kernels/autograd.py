"""Nothing here is ever trained through: what these functions return carries no gradient."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Result = TypeVar("Result")


def without_grad(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """`function` under `torch.no_grad`, which is not entered where gradients are off already: it costs more than a
    microsecond."""

    @wraps(function)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        if not torch.is_grad_enabled():
            return function(*args, **kwargs)
        with torch.no_grad():
            return function(*args, **kwargs)

    return run
