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
_OURS = re.compile(rf"\b{SOURCE.name}\b(?!\.(?:batch|adjustments)\b)")
"""What a copy has for itself: all but the values that callers make."""

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
    for path in copy.rglob("*.py"):
        path.write_text(_OURS.sub(name, path.read_text()))
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    finally:
        # The rest of it may be imported as late as on a call: by its package's path, not by this one.
        sys.path.remove(str(folder))
