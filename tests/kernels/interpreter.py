"""Triton's interpreter for tests without a GPU: quicker, and in any order of programs."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
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
    """Take out work that Triton's interpreter repeats on every operation, with the same results: half of the time of a
    kernel's test."""
    _patch_language_once()
    _remember_types()
    _drop_checks_without_result()


def _patch_language_once() -> None:
    """A launch has put the interpreter's own versions in the place of the language's functions; then each call of a
    device function looks for functions to replace again, and finds none."""
    import triton.language as tl
    from triton.runtime import interpreter

    replace = interpreter._patch_lang

    class Nothing:
        def restore(self) -> None:
            """There is nothing to undo."""

    @functools.cache
    def languages(function: Any) -> list[Any]:
        # The language's own functions know it as `core`, with entries of its own.
        return [value for value in function.__globals__.values() if value is tl or value is tl.core]

    def replace_once(function: Any) -> Any:
        missing = any(tl.core.is_builtin(module.program_id) for module in languages(function))
        return replace(function) if missing else Nothing()

    interpreter._patch_lang = replace_once


def _remember_types() -> None:
    """Each value makes its type and shape anew, a few of them among millions of values."""
    from triton.language import core
    from triton.runtime import interpreter

    find_np_dtype = interpreter._get_np_dtype
    np_dtypes: dict[str, np.dtype[Any]] = {}
    make_block_type = core.block_type.__init__
    block_types: dict[Any, dict[str, Any]] = {}
    shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def np_dtype(kind: Any) -> np.dtype[Any]:
        if kind.name not in np_dtypes:
            np_dtypes[kind.name] = find_np_dtype(kind)
        return np_dtypes[kind.name]

    def block_type(self: Any, element_ty: Any, shape: Any) -> None:
        pointer = (getattr(element_ty, "address_space", None), getattr(element_ty, "const", None))
        key = (element_ty.name, *pointer, *(getattr(size, "value", size) for size in shape))
        if key not in block_types:
            make_block_type(self, element_ty, shape)
            block_types[key] = dict(vars(self))
        vars(self).update(block_types[key])

    def tensor(self: Any, handle: Any, type: Any) -> None:
        sizes = tuple(type.shape) if type.is_block() else ()
        if sizes not in shapes:
            shapes[sizes] = core.constexpr(math.prod(sizes)), core.tuple([core.constexpr(size) for size in sizes])
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = shapes[sizes]

    interpreter._get_np_dtype = np_dtype
    core.block_type.__init__ = block_type
    core.tensor.__init__ = tensor


def _drop_checks_without_result() -> None:
    """Each sum, difference and product of integers is computed a second time for an assertion about overflow, which is
    then dropped unless the kernel is debugged."""
    from triton.language.semantic import TritonSemantic

    check = TritonSemantic.binary_op_sanitize_overflow_impl

    def check_if_debugged(self: Any, lhs: Any, rhs: Any, binary_op: Any) -> None:
        if self.builder.options.debug:
            check(self, lhs, rhs, binary_op)

    TritonSemantic.binary_op_sanitize_overflow_impl = check_if_debugged


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
