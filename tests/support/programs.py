"""The programs that tests start and Python packages do not contain: Redis, Chromium, kubectl, promtool, an API server.

`make test` installs missing programs before the first test, with apt-get as root. Elsewhere it prints the command that
installs them. Installed programs, from whatever package, stay as they are.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

PACKAGES = {  # Debian's package of each program
    "redis-server": "redis-server",
    "chromium": "chromium",
    "kubectl": "kubernetes-client",
    "promtool": "prometheus",
}
ASSETS = ("etcd", "kube-apiserver")
_ROOT = Path(__file__).parents[2]
_BUILD = ".ci/build-apiserver"
_APT_GET = ("apt-get", "install", "-y", "-qq", "--no-install-recommends")


def assets_folder() -> Path:
    """The folder of etcd and kube-apiserver: $KUBEBUILDER_ASSETS, else the cache folder of .ci/build-apiserver."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("KUBEBUILDER_ASSETS") or cache / "kube-assets")


def missing_assets() -> list[str]:
    return [name for name in ASSETS if not os.access(assets_folder() / name, os.X_OK)]


def install(report: Callable[[str], None], *, is_root: bool | None = None) -> None:
    """Installs the missing programs. `report` gets progress lines. `is_root`: by default the fact.

    Raises:
        SystemExit: they cannot be installed here (no root, or no apt-get), or their installation failed.
    """
    packages, assets = _missing_packages(), missing_assets()
    if not packages and not assets:
        return
    is_root = os.geteuid() == 0 if is_root is None else is_root
    if not is_root or shutil.which("apt-get") is None:
        raise SystemExit(instruction())
    if packages:
        report(f"installing {', '.join(packages)} with apt-get …")
        _run("apt-get", "update", "-qq")
        _run(*_APT_GET, *packages)
    if assets:
        report(f"building the Kubernetes API server into {assets_folder()} (4 minutes and 130 MB, once) …")
        _run(_BUILD, str(assets_folder()))


def instruction() -> str:
    """One line with the missing programs and the command that installs them; empty if none is missing."""
    packages, assets = _missing_packages(), missing_assets()
    programs = [name for name in PACKAGES if PACKAGES[name] in packages]
    commands = []
    if packages:
        commands += [("apt-get", "update", "-qq"), (*_APT_GET, *packages)]
    if assets:
        commands += [(_BUILD, str(assets_folder()))]
    line = " && ".join(f"sudo {shlex.join(command)}" for command in commands)
    return f"missing programs: {', '.join([*programs, *assets])}; on Debian: {line}" if commands else ""


def _missing_packages() -> list[str]:
    return [package for program, package in PACKAGES.items() if shutil.which(program) is None]


def _run(*command: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, cwd=_ROOT, env=environment, stdout=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise SystemExit(f"`{shlex.join(command)}` failed with exit code {done.returncode}")
