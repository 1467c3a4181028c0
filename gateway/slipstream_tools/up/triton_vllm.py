"""The Python environment of Triton's stub for a model that vLLM serves.

If the model's parameter EXECUTION_ENV_PATH names a folder, Triton starts the stub through its `bin/activate`. So vLLM's
packages apply to that model alone, and other models of the same server keep ours. The stub runs Python isolated, in the
virtual environment of the first `python3` in PATH. Here that is a thin one over vLLM's: our engine package and the
numpy that fits the stub, both as links, come first in it. vLLM's own child processes do not see it.
"""

from __future__ import annotations

import importlib.util
import shlex
import sys
from pathlib import Path

from slipstream_core.errors import CommandError
from slipstream_core.installation import how_to_install

from slipstream_tools.up.vllm_environment import VllmInstall

ENVIRONMENT_PARAMETER = "EXECUTION_ENV_PATH"
_ENGINE = "slipstream_engine"
_PASSED = ("VLLM_", "HF_", "DO_NOT_TRACK", "OMP_", "KMP_")
_NUMPY = ("numpy", "numpy.libs")  # the package, and the libraries beside it from its wheel


def write_stub_environment(install: VllmInstall, folder: Path) -> Path:
    """Creates the environment in `folder`, which must not exist, and returns it.

    Raises:
        CommandError: the engine package or numpy is not installed beside the gateway.
    """
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for made in (packages, folder / "bin"):
        made.mkdir(parents=True)
    base = Path(sys.base_prefix) / "bin"
    (folder / "pyvenv.cfg").write_text(f"home = {base}\ninclude-system-site-packages = false\n", encoding="utf-8")
    (folder / "bin" / "python3").symlink_to(base / "python3")
    (packages / "vllm.pth").write_text(
        f"import site; site.addsitedir({str(install.site_packages)!r})\n", encoding="utf-8"
    )
    (packages / _ENGINE).symlink_to(_package(_ENGINE))
    beside = _package("numpy").parent
    for name in _NUMPY:
        if (beside / name).exists():
            (packages / name).symlink_to(beside / name)
    variables = _variables(install, folder, packages)
    script = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    (folder / "bin" / "activate").write_text(script, encoding="utf-8")
    return folder


def _variables(install: VllmInstall, folder: Path, packages: Path) -> dict[str, str]:
    """The variables that the stub's environment adds to the server's; the engine package reads the last three."""
    environment = install.environment()
    variables = {name: environment[name] for name in environment if name.startswith(_PASSED)}
    return {
        **variables,
        "PATH": f"{folder / 'bin'}:{environment['PATH']}",
        "SLIPSTREAM_STUB_PACKAGES": str(packages),
        "SLIPSTREAM_VLLM_PYTHON": str(install.python),
        "SLIPSTREAM_VLLM_PRELOAD": environment.get("LD_PRELOAD", ""),
    }


def _package(name: str) -> Path:
    """The folder of an installed package, without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise CommandError(f"vLLM in Triton requires {name}, which is not installed; {how_to_install('embedded')}")
    return Path(spec.origin).parent
