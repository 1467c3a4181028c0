"""vLLM in its own virtual environment: installed once, checked at each start, repaired if broken.

vLLM needs numpy 2 and hundreds of packages, the gateway's environment has numpy 1 and few. A virtual environment cannot
be moved, so it is built in place, under a lock; a marker file, written last, records that it is complete.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from slipstream_core.environment import cache_folder
from slipstream_core.errors import CommandError
from slipstream_core.file_changes import replace_file

from slipstream_tools.up.cache import Report, exclusive
from slipstream_tools.up.pip import PipError, PipRunner
from slipstream_tools.up.vllm_environment import VllmInstall, inspect

VERSION = "0.32.0"
_REQUIREMENTS = Path(__file__).with_name("vllm-requirements.txt")
_PACKAGE = Path(__file__).parent.parent
_PLUGINS = (_PACKAGE / "vllm_plugin", _PACKAGE.parent.parent / "kernels" / "slipstream_vllm")
_PYTHONS = ((3, 11), (3, 12))
_MARKER = "slipstream.json"


class _Marker(msgspec.Struct, frozen=True, kw_only=True):
    """The completed installation. Hashes: SHA-256."""

    requirements: str
    plugin: str | None = None
    extra: tuple[str, ...] = ()


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """The content of an installation: the packages of `requirements`, each with its version, and the plugin's folder.
    `needed_bytes` is its size on disk."""

    name: str = f"vllm-{VERSION}"
    requirements: Path = _REQUIREMENTS
    plugin: Path | None = None
    needed_bytes: int = 4 * 1024**3


def install_vllm(
    report: Report,
    *,
    extra: Sequence[str] = (),
    stopping: Callable[[], bool] = lambda: False,
    recipe: Recipe | None = None,
) -> VllmInstall:
    """The environment with vLLM and this version's plugin, built or repaired first if necessary.

    `extra`: additional requirements, such as `pytest==9.2.0`. `report` gets progress lines. Safe with concurrent
    processes.

    Raises:
        CommandError: no supported Python, no disk space, no package index, or pip's own reason.
        Stopped: `stopping()` became true.
    """
    recipe = recipe or Recipe(plugin=plugin_source())
    folder = cache_folder() / recipe.name
    with exclusive(folder.with_name(f"{recipe.name}.lock"), report=report, stopping=stopping):
        runner = PipRunner(log_path=folder.with_name(f"{recipe.name}.log"), report=report, stopping=stopping)
        marker = _read_marker(folder)
        if marker is None or marker.requirements != _hash([recipe.requirements]):
            marker = _build(folder, recipe, runner, report)
        if recipe.plugin is not None and marker.plugin != (plugin := _hash(_plugin_files(recipe.plugin))):
            _install_plugin(folder, recipe.plugin, runner, marker)
            marker = msgspec.structs.replace(marker, plugin=plugin)
            _write_marker(folder, marker)
        if missing := tuple(item for item in extra if item not in marker.extra):
            runner.pip(_python(folder), ["install", *missing], what=f"the installation of {', '.join(missing)} failed")
            _write_marker(folder, msgspec.structs.replace(marker, extra=(*marker.extra, *missing)))
    return inspect(_python(folder))


def plugin_source() -> Path:
    """The plugin's folder, with its `pyproject.toml`: in the installed package, or in the source tree."""
    for folder in _PLUGINS:
        if (folder / "pyproject.toml").is_file():
            return folder
    raise CommandError(f"this installation is incomplete: {_PLUGINS[0]} is missing")


def _build(folder: Path, recipe: Recipe, runner: PipRunner, report: Report) -> _Marker:
    """Builds the environment anew, without the plugin."""
    if sys.version_info[:2] not in _PYTHONS:
        raise CommandError(f"vLLM {VERSION} requires Python 3.11 or 3.12, this is {sys.version.split()[0]}")
    if folder.exists():
        report(f"removing an incomplete or older installation in {folder} …")
        shutil.rmtree(folder)
    if (free := shutil.disk_usage(folder.parent).free) < recipe.needed_bytes:
        needed = f"{recipe.needed_bytes / 1e9:.1f} GB"
        raise CommandError(f"vLLM needs {needed} in {folder.parent}, where {free / 1e9:.1f} GB are free")
    report(f"installing vLLM {VERSION} into {folder} (about 600 MB to download, once) …")
    what = f"the installation of vLLM {VERSION} failed"
    runner.run([sys.executable, "-m", "venv", str(folder)], what=what)
    _install_requirements(folder, recipe.requirements, runner, what=what)
    marker = _Marker(requirements=_hash([recipe.requirements]))
    _write_marker(folder, marker)
    return marker


def _install_requirements(folder: Path, requirements: Path, runner: PipRunner, *, what: str) -> None:
    lines = requirements.read_text(encoding="utf-8").splitlines()
    packages = sum(1 for line in lines if line and not line.startswith("#"))
    arguments = ["install", "--no-deps", "--progress-bar=off", "-r", str(requirements)]
    try:
        runner.pip(_python(folder), arguments, what=what, packages=packages)
    except PipError as exc:
        if "No matching distribution found for torch" not in exc.output:
            raise
        message = f"{what}: none of pip's package indexes has a CPU build of PyTorch; set PIP_EXTRA_INDEX_URL to one "
        "that has,"
        raise CommandError(f"{message} see PyTorch's installation guide for CPUs") from exc


def _install_plugin(folder: Path, source: Path, runner: PipRunner, marker: _Marker) -> None:
    """Installs the plugin; meanwhile the marker has no plugin."""
    _write_marker(folder, msgspec.structs.replace(marker, plugin=None))
    runner.pip(
        _python(folder),
        ["install", "--no-deps", "--no-build-isolation", "--force-reinstall", str(source)],
        what="the installation of Slipstream's plugin for vLLM failed",
    )


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


def _read_marker(folder: Path) -> _Marker | None:
    """None if the environment is incomplete, or its Python is gone."""
    try:
        marker = msgspec.json.decode((folder / _MARKER).read_bytes(), type=_Marker)
    except (OSError, msgspec.MsgspecError):
        return None
    return marker if _python(folder).exists() else None


def _write_marker(folder: Path, marker: _Marker) -> None:
    replace_file(folder / _MARKER, msgspec.json.encode(marker))


def _plugin_files(source: Path) -> list[Path]:
    files = (path for path in source.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return sorted(path for path in files if not any(part.startswith(".") for part in path.relative_to(source).parts))


def _hash(files: Sequence[Path]) -> str:
    """A hash of names and contents."""
    digest = hashlib.sha256()
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
