"""Finds a Triton Inference Server on this machine and prepares the folders that our Python backend needs.

The `nvidia-pytriton` wheel contains the server, its libraries, the Python backend and one stub per CPython version. It
is located by its installed files and never imported. Triton requires one folder per backend with the stub of the
running interpreter inside; the folder consists of links, so nothing large is copied.
"""

from __future__ import annotations

import ctypes
import os
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import msgspec
from slipstream_core.errors import CommandError
from slipstream_core.installation import how_to_install

WHEEL = "nvidia-pytriton"
_WHEEL_LIBRARIES = "wheel"
STUB = "triton_python_backend_stub"


class TritonInstall(msgspec.Struct, frozen=True, kw_only=True):
    """The paths of the server's parts. `stub` fits the running interpreter, whose shared library is `libpython`: a
    file, or None if the dynamic loader finds one by itself."""

    binary: Path
    libraries: Path
    backends: Path
    stub: Path
    libpython: Path | None


def find_triton() -> TritonInstall:
    """The server that the `nvidia-pytriton` wheel installed.

    Raises:
        CommandError: the wheel is not installed, or has no stub for this Python.
    """
    try:
        site_packages = Path(str(distribution(WHEEL).locate_file("")))
    except PackageNotFoundError as exc:
        raise CommandError(
            f"Triton Inference Server is not installed: the package {WHEEL} is missing; {how_to_install('embedded')}"
        ) from exc
    server = site_packages / "pytriton" / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    install = TritonInstall(
        binary=server / "bin" / "tritonserver",
        libraries=site_packages / "nvidia_pytriton.libs",
        backends=server / "backends",
        stub=server / "python_backend_stubs" / version / STUB,
        libpython=_find_libpython(version),
    )
    for path in (install.binary, install.libraries, install.backends):
        if not path.exists():
            raise CommandError(f"the installed package {WHEEL} is incomplete: {path} is missing")
    if not install.stub.is_file():
        raise CommandError(f"the installed package {WHEEL} does not support Python {version}: no {install.stub}")
    return install


def _find_libpython(version: str) -> Path | None:
    """The shared library that the stub is linked with. Without it the stub cannot start, and Triton would wait for
    ever."""
    name = f"libpython{version}.so.1.0"
    folders = (sysconfig.get_config_var("LIBDIR"), Path(sys.base_prefix) / "lib")
    for folder in filter(None, folders):
        if (Path(folder) / name).is_file():
            return Path(folder) / name
    try:
        ctypes.CDLL(name)
    except OSError as exc:
        raise CommandError(
            f"Triton needs {name}, which this Python ({sys.executable}) does not have: install your system's "
            f"libpython{version} package (on Debian: apt-get install libpython{version}), or use a Python that was "
            "built with --enable-shared"
        ) from exc
    return None


def link_libraries(install: TritonInstall, folder: Path) -> Path:
    """Creates a folder with a link to the wheel's libraries, and with the interpreter's shared library alone, because
    Triton must not load the files beside it."""
    folder.mkdir()
    (folder / _WHEEL_LIBRARIES).symlink_to(install.libraries)
    if install.libpython is not None:
        (folder / install.libpython.name).symlink_to(install.libpython)
    return folder


def link_backends(install: TritonInstall, folder: Path) -> Path:
    """Creates the backend folder in `folder`, which must not have one yet, and returns it."""
    python_backend = folder / "python"
    python_backend.mkdir(parents=True)
    for path in (install.backends / "python").iterdir():
        if path.is_file():
            (python_backend / path.name).symlink_to(path)
    (python_backend / STUB).symlink_to(install.stub)
    return folder


def triton_environment(libraries: Path) -> dict[str, str]:
    """This process's environment, changed so that Triton finds the linked `libraries` and the stub our packages."""
    environment = dict(os.environ)
    # The loader splits this at each semicolon as well, and expands `$`: an environment's own path may have both.
    environment["LD_LIBRARY_PATH"] = os.pathsep.join([str(libraries / _WHEEL_LIBRARIES), str(libraries)])
    # The stub locates packages with the first `python3` in PATH.
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", "")])
    environment.pop("PYTHONHOME", None)
    return environment
