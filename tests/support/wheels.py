"""Wheels built from this tree, and environments without this checkout that they are installed into."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from deploy.install import has_sources, parse_pip_config, uv_variables

ROOT = Path(__file__).parents[2]
_UV = str(Path(sys.executable).with_name("uv"))
_INSTALL_LIMIT_S = 900.0
CPU_TORCH = "torch==2.13.0+cpu"  # the builds for CUDA have gigabytes


def build_wheel(folder: Path, source: Path = ROOT, *, is_compiled: bool = False) -> Path:
    """The wheel of the package in `source`, built into the empty `folder`."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    environment = {**os.environ, **({"SLIPSTREAM_COMPILE": "1"} if is_compiled else {})}
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    [wheel] = folder.glob("*.whl")
    return wheel


def find_python(version: str) -> str | None:
    """A Python of this version: one that uv finds, one of pyenv's, or one that uv can install. None: there is none."""
    pyenv = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
    if found := _printed("python", "find", "--no-python-downloads", version):
        return found
    if pyenv:
        return str(pyenv[0])
    _printed("python", "install", version)
    return _printed("python", "find", version)


def _printed(*arguments: str) -> str | None:
    """What uv prints; None if it fails."""
    done = subprocess.run([_UV, "--quiet", *arguments], check=False, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


class Environment:
    """A virtual environment that uv fills from the package sources of pip. No program in it finds this checkout."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self.folder, self.bin = folder, folder / "venv" / "bin"
        self.python = str(self.bin / "python")
        pip = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True
        )
        sources = parse_pip_config(pip.stdout)
        self._uv_environment = {**os.environ, **uv_variables(sources, os.environ)}
        self._backend = () if has_sources(sources, os.environ) else ("--torch-backend", "cpu")
        self.environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        folder.mkdir(exist_ok=True)
        (folder / "constraints.txt").write_text(f"{CPU_TORCH}\n")
        assert self._run_uv("venv", "--python", python, str(folder / "venv")) == ""

    def install(self, *requirements: str) -> None:
        """`requirements`: arguments of `uv pip install`."""
        error = self._run_uv(*self._pip, *requirements)
        assert not error, error

    def resolves(self, *requirements: str, is_cpu: bool = True) -> bool:
        """Whether versions of all packages fit together. `is_cpu`: of PyTorch, the build for CPUs counts alone."""
        pip = self._pip if is_cpu else self._pip[:4]
        return not self._run_uv(*pip, "--dry-run", *requirements)

    @property
    def _pip(self) -> list[str]:
        constraints = str(self.folder / "constraints.txt")
        return ["pip", "install", "--python", self.python, "-c", constraints, *self._backend]

    def _run_uv(self, *arguments: str) -> str:
        """Its errors; empty if it succeeded."""
        command = [_UV, "--quiet", *arguments]
        done = subprocess.run(
            command, check=False, env=self._uv_environment, capture_output=True, text=True, timeout=_INSTALL_LIMIT_S
        )
        return done.stderr if done.returncode else ""

    def run(self, program: str, *arguments: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
        """Runs a program of the environment to its end, with the environment's folder as the working directory."""
        return subprocess.run(
            [str(self.bin / program), *arguments],
            input=input,
            check=False,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=_INSTALL_LIMIT_S,
        )

    def slipstream(self, *arguments: str, input: str | None = None) -> str:
        """What `slipstream` prints; it must succeed."""
        done = self.run("slipstream", *arguments, input=input)
        assert done.returncode == 0, done.stderr
        return done.stdout
