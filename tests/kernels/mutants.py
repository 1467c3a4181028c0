"""The package with a known fault in it: a copy of its source with one expression replaced."""

from __future__ import annotations

import importlib
import itertools
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import slipstream_kernels

SOURCE = Path(slipstream_kernels.__file__).parent
_SHARED = ("batch", "adjustments")
"""Modules of values that callers make, which a copy takes from the original, but for the one with the fault."""

_numbers = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Fault:
    """`right` in `file` (a path inside the package) becomes `wrong`. `right` stands there exactly once."""

    name: str
    file: str
    right: str
    wrong: str


def package_with(fault: Fault | None, folder: Path) -> ModuleType:
    """Import a copy of `slipstream_kernels` made in `folder`, under a name of its own. None: without a fault."""
    name = f"slipstream_kernels_copy_{next(_numbers)}"
    copy = Path(shutil.copytree(SOURCE, folder / name, ignore=shutil.ignore_patterns("__pycache__")))
    if fault is not None:
        text = (copy / fault.file).read_text()
        assert text.count(fault.right) == 1, (
            f"{fault.name}: {fault.file} has {fault.right!r} {text.count(fault.right)}×"
        )
        (copy / fault.file).write_text(text.replace(fault.right, fault.wrong))
    shared = "|".join(module for module in _SHARED if fault is None or fault.file != f"{module}.py")
    ours = re.compile(rf"\b{SOURCE.name}\b(?!\.(?:{shared})\b)")
    for path in copy.rglob("*.py"):
        path.write_text(ours.sub(name, path.read_text()))
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    finally:
        # The rest of it may be imported as late as on a call: by its package's path, not by this one.
        sys.path.remove(str(folder))
