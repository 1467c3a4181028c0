"""Adds compiled code to the wheel if the environment has `SLIPSTREAM_COMPILE=1`, as in `make wheel-compiled`.

mypyc compiles the typed Python of `decide/`, and a C compiler `_row_sum.c`, which replaces some calls of NumPy. Without
the variable the wheel is pure Python and needs no compiler.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = Path("gateway")
COMPILED = Path("slipstream_gateway/decide")
ROW_SUM = COMPILED / "classify" / "_row_sum.c"
# Modules with this text stay Python: mypyc ignores the options of a class, such as `forbid_unknown_fields`.
NOT_COMPILED = "msgspec.Struct"


class CompileHook(BuildHookInterface[Any]):
    """Adds compiled modules to a wheel, beside their sources."""

    _folder: tempfile.TemporaryDirectory[str] | None = None  # has the compiled files until the wheel is written

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the compiled files and the tag of this platform to `build_data`. Raises `CompileError`."""
        if os.environ.get("SLIPSTREAM_COMPILE") != "1" or version == "editable":
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        self._folder = folder = tempfile.TemporaryDirectory()
        for path in compiled(Path(self.root, SOURCES), Path(folder.name)):
            build_data["force_include"][str(path)] = str(path.relative_to(folder.name))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._folder is not None:
            self._folder.cleanup()


def modules(root: Path) -> list[str]:
    """The modules for mypyc, as paths in `root`."""
    found = sorted((root / COMPILED).rglob("*.py"))
    kept = [path for path in found if path.name != "__init__.py" and NOT_COMPILED not in path.read_text()]
    return [str(path.relative_to(root)) for path in kept]


def compiled(root: Path, folder: Path) -> list[Path]:
    """Compiles into `folder`; returns the compiled files."""
    from mypyc.build import mypycify  # both are needed for compiled wheels only
    from setuptools import Distribution, Extension  # type: ignore[import-untyped]

    here = Path.cwd()
    os.chdir(root)
    try:
        options = ["--follow-imports=silent", "--ignore-missing-imports", "--cache-dir", str(folder / "cache")]
        row_sum = Extension(
            ".".join(ROW_SUM.with_suffix("").parts), [str(ROW_SUM)], extra_compile_args=["-O3"], py_limited_api=True
        )
        extensions = mypycify([*options, *modules(root)], opt_level="3", debug_level="0", target_dir=str(folder / "c"))
        command = Distribution({"ext_modules": [*extensions, row_sum]}).get_command_obj("build_ext")
        command.build_lib, command.build_temp = str(folder), str(folder / "temp")
        command.ensure_finalized()
        command.run()
    finally:
        os.chdir(here)
    return sorted(folder.glob("*.so")) + sorted((folder / COMPILED.parts[0]).rglob("*.so"))
