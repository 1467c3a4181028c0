"""A Python that has imported vLLM already: its programs start in milliseconds, where the imports take 7 to 40 s of
processor time in each of the three processes of a server.

`PreloadedPython.install` takes the place of an install of vLLM. The same code of vLLM runs in its processes as with a
Python that starts anew; they are forked instead of executed, each from a process that has imported modules and done
nothing else. The processes differ in this:

- A started process is a launcher. Its program is another process, with the same output, environment, folder, priority
  and cores. Signals reach the program; SIGSTOP stops the launcher only. If one is killed, the other one is.
- A program with other values of variables that are read at import (logging, OpenMP, Hugging Face) is not forked: the
  launcher executes the Python of the install.

Where a test needs the real start of a server, it takes the install of `install_vllm`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec
from slipstream_tools.up.processes import Child
from slipstream_tools.up.vllm_environment import VllmInstall

from tests.support.polling import eventually

IMPORT_TIMEOUT_S = 600.0
_FOLDER = Path(__file__).with_name("preloaded")
_LAUNCHER = """\
#!{python} -IS
import sys
sys.path.insert(0, {folder!r})
import launcher
launcher.main({address!r}, {real!r})
"""


class PreloadedPython:
    """The parent process of the programs, with a folder for the launcher, the socket and the log."""

    def __init__(self, install: VllmInstall, env: Mapping[str, str] | None = None) -> None:
        """Starts it and waits for its imports. `env` is added to the environment of `install`; its programs are to be
        started with the same variables."""
        # A socket path has at most 107 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="preloaded-vllm-", dir="/tmp"))
        address = self.folder / "socket"
        launcher = self.folder / "python"
        text = _LAUNCHER.format(
            python=sys.executable, folder=str(_FOLDER), address=str(address), real=str(install.python)
        )
        launcher.write_text(text, encoding="utf-8")
        launcher.chmod(0o700)
        self.install = msgspec.structs.replace(install, python=launcher)
        self.child = Child(
            name="the preloaded Python",
            command=[str(install.python), str(_FOLDER / "parent.py"), str(address)],
            log_path=self.folder / "log",
            env={**install.environment(), **(env or {})},
            cwd=self.folder,
        )

        def has_imported() -> bool:
            assert self.child.exit_status() is None, self.child.log_tail()
            return address.exists()

        eventually(has_imported, "the imports of vLLM", within_s=IMPORT_TIMEOUT_S, seen=self.child.log_tail)

    def stop(self) -> None:
        """Ends the parent, and its programs with it."""
        self.child.stop(timeout_s=10.0)
        shutil.rmtree(self.folder, ignore_errors=True)
