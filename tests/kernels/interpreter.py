"""Triton's interpreter for tests without a GPU: quicker, and in any order of programs."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
COMPILING_S = 570  # Tests that wait for it have `timeout(600)`.


def run_compiling(*arguments: str, **environment: str) -> str:
    """What Python prints with these arguments in a process that compiles kernels instead of interpreting them."""
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command, variables = [sys.executable, *arguments], inherited | environment
    done = subprocess.run(
        command, cwd=REPOSITORY, env=variables, capture_output=True, text=True, timeout=COMPILING_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def make_quicker() -> None:
    """Take out work that triton 3.6 does again on every call of a device function, without a result.

    The launch has put the interpreter's own versions in the place of the language's functions; each call looks for
    functions to replace again, finds none, and spends a quarter of a millisecond on it: more than half of a test.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    replace = interpreter._patch_lang

    class Nothing:
        def restore(self) -> None:
            """There is nothing to undo."""

    def replace_once(function: Any) -> Any:
        # The language's own functions know it as `core`, with entries of its own.
        seen = [value for value in function.__globals__.values() if value is tl or value is tl.core]
        missing = any(tl.core.is_builtin(module.program_id) for module in seen)
        return replace(function) if missing else Nothing()

    interpreter._patch_lang = replace_once


@contextlib.contextmanager
def programs_in_random_order(seed: int) -> Iterator[None]:
    """Run the programs of each launch one after the other in an order drawn from `seed`.

    A GPU promises no order; the interpreter counts up. Only launches over one axis are shuffled.
    """
    from triton.runtime.interpreter import interpreter_builder

    order: list[int] = []
    generator = random.Random(seed)
    set_grid_dim, set_grid_idx = interpreter_builder.set_grid_dim, interpreter_builder.set_grid_idx

    def shuffle(*grid: int) -> None:
        order[:] = generator.sample(range(grid[0]), grid[0])
        set_grid_dim(*grid)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter_builder, "set_grid_dim", shuffle)
        patch.setattr(interpreter_builder, "set_grid_idx", lambda x, y, z: set_grid_idx(order[x], y, z))
        yield
