"""Installs this checkout into a virtual environment: `python deploy/install.py .venv dev`.

uv installs the packages in seconds, from the package sources that pip is configured with. pip installs them where uv
cannot be installed. A file in the environment exists as long as an installation is unfinished. After an interruption
the next installation finds it and builds the environment anew. This script needs the standard library only.
"""

from __future__ import annotations

import ast
import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

EXTRAS = {"run": "embedded,bench,kubernetes", "dev": "dev"}  # `dev` includes the others
_ROOT = Path(__file__).resolve().parents[1]
_CONSTRAINTS = ("-c", "constraints.txt")
_INPUTS = ("pyproject.toml", "constraints.txt")
_FINISHED = ".installed"
_UNFINISHED = ".unfinished"
_PYTHONS = ((3, 11), (3, 13))  # from the first to below the second
_UV_CPU = ("--torch-backend", "cpu")  # the CUDA build has gigabytes of libraries
# What uv calls an option of pip, and the separator of its values.
_UV_NAMES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
}
_PIP_SOURCES = ("index-url", "extra-index-url", "find-links", "no-index")
_UV_SOURCES = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")


class InstallError(Exception):
    """The installation failed; the message is for the user."""


def main(arguments: Sequence[str]) -> int:
    folder, extra = Path(arguments[0]), EXTRAS[arguments[1]]
    if _is_installed(folder, extra):
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops uv and pip as well
    try:
        with _exclusive() as lock:
            if not _is_installed(folder, extra):  # another process may have installed it meanwhile
                _install(folder, extra, lock)
    except KeyboardInterrupt:
        print(f"interrupted: the next `make` builds {folder} anew", file=sys.stderr)
        return 130
    except (InstallError, OSError) as exc:
        print(f"the installation into {folder} failed: {exc}", file=sys.stderr)
        return 1
    return 0


@contextlib.contextmanager
def _exclusive() -> Iterator[int]:
    """Only one installation runs in this checkout. Its programs inherit the descriptor: they hold the lock as well."""
    folder = os.open(_ROOT, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("waiting for another installation in this checkout …")
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield folder
    finally:
        os.close(folder)


def _is_installed(folder: Path, extra: str) -> bool:
    """Whether `extra` of the present inputs is installed."""
    try:
        finished = (folder / _FINISHED).read_text(encoding="utf-8")
    except OSError:
        return False
    return finished in (_stamp(extra), _stamp("dev")) and os.access(folder / "bin" / "python", os.X_OK)


def _stamp(extra: str) -> str:
    digest = hashlib.sha256(b"\0".join((_ROOT / name).read_bytes() for name in _INPUTS))
    return f"{extra} {digest.hexdigest()}\n"


def _install(folder: Path, extra: str, lock: int) -> None:
    """Installs `extra`, into a new environment if the present one is not whole.

    Raises:
        InstallError: Python has no supported version, or a program failed. Its output is on the terminal.
        OSError: the disk is full, or the folder cannot be written.
    """
    python = folder / "bin" / "python"
    is_whole = _is_whole(folder, python)
    if not is_whole and not _PYTHONS[0] <= sys.version_info[:2] < _PYTHONS[1]:
        version = sys.version.split()[0]
        raise InstallError(f"slipstream needs Python 3.11 or 3.12, this is {version} (make up PYTHON=/path/to/python)")
    folder.mkdir(exist_ok=True)
    (folder / _UNFINISHED).touch()
    (folder / _FINISHED).unlink(missing_ok=True)
    if not is_whole:
        _clear(folder)
        _say(f"creating the virtual environment {folder} …")
        _run([sys.executable, "-m", "venv", str(folder)], lock)
    _install_packages(python, ["-e", f".[{extra}]"], lock)
    (folder / _FINISHED).write_text(_stamp(extra), encoding="utf-8")
    (folder / _UNFINISHED).unlink()


def _is_whole(folder: Path, python: Path) -> bool:
    """Whether the environment can be installed into.

    Raises:
        InstallError: the folder has files and is no virtual environment.
    """
    unfinished = (folder / _UNFINISHED).exists()
    if folder.is_dir() and any(folder.iterdir()) and not unfinished and not (folder / "pyvenv.cfg").exists():
        raise InstallError("the folder is no virtual environment: move it away")
    return not unfinished and _succeeds([str(python), "-m", "pip", "--version"])


def _clear(folder: Path) -> None:
    """Removes everything but the mark of an unfinished installation."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != _UNFINISHED:
            path.unlink()


def _install_packages(python: Path, packages: Sequence[str], lock: int) -> None:
    pip = [str(python), "-m", "pip"]
    config = _pip_config(pip)
    command = [*pip, "install", "--disable-pip-version-check", *_CONSTRAINTS]
    if not _succeeds([*command, "-qq", "uv"], pass_fds=(lock,)):
        _say(f"installing {packages[-1]} with pip, because uv cannot be installed: this takes minutes …")
        _run([*command, *packages], lock)
        return
    _say(f"installing {packages[-1]} with uv …")
    variables = {**os.environ, **uv_variables(config, os.environ)}
    command = [str(python.with_name("uv")), "pip", "install", "--python", str(python), *_CONSTRAINTS, *packages]
    command += ["--no-index"] if _is_set(config, "no-index") else []
    if not has_sources(config, os.environ):
        try:
            _run([*command, *_UV_CPU], lock, env=variables)
            return
        except InstallError:
            _say("without PyTorch's own index of CPU builds, which may be unreachable; this may download gigabytes …")
    _run(command, lock, env=variables)


def _pip_config(pip: Sequence[str]) -> dict[str, str]:
    done = subprocess.run([*pip, "config", "list"], cwd=_ROOT, capture_output=True, text=True, check=True)
    return parse_pip_config(done.stdout)


def parse_pip_config(listing: str) -> dict[str, str]:
    """The options for `pip install` in the output of `pip config list`. Variables outrank files."""
    options: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listing.splitlines():
        name, _, value = line.partition("=")
        section, _, option = name.partition(".")
        if section in options:
            options[section][option] = str(ast.literal_eval(value))
    return {**options["global"], **options["install"], **options[":env:"]}


def uv_variables(pip_config: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that give uv the package sources of pip. Sources that uv has already take precedence."""
    has_sources = any(name in environment for name in _UV_SOURCES)
    variables = {}
    for option, (name, separator) in _UV_NAMES.items():
        if option in pip_config and name not in environment and not (has_sources and option in _PIP_SOURCES):
            variables[name] = separator.join(pip_config[option].split())
    if "UV_INDEX" in variables:
        variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # pip's own: the best version of all indexes
    return variables


def has_sources(pip_config: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    """Whether the user has chosen where packages come from, and so which build of PyTorch is installed."""
    chosen = (*(name in pip_config for name in _PIP_SOURCES), *(name in environment for name in _UV_SOURCES))
    return any(chosen) or "UV_TORCH_BACKEND" in environment


def _is_set(pip_config: Mapping[str, str], option: str) -> bool:
    return pip_config.get(option, "").lower() in ("1", "true", "yes", "on")


def _run(command: Sequence[str], lock: int, env: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(command, cwd=_ROOT, env=env, pass_fds=(lock,), check=False)
    if done.returncode != 0:
        raise InstallError(f"`{' '.join(command)}` ended with exit code {done.returncode}")


def _succeeds(command: Sequence[str], pass_fds: Sequence[int] = ()) -> bool:
    try:
        return subprocess.run(command, cwd=_ROOT, capture_output=True, pass_fds=pass_fds, check=False).returncode == 0
    except OSError:
        return False


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
