"""Where processes are that do not become ready: their Python stacks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil

_PY_SPY = Path(sys.executable).with_name("py-spy")
_DUMP_S = 30.0


def stacks_of_children() -> str:
    """The stacks of all processes below this one that run Python, as far as they can be read."""
    found = []
    for child in psutil.Process().children(recursive=True):
        command = [str(_PY_SPY), "dump", "--pid", str(child.pid)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_DUMP_S, check=False)
        except subprocess.TimeoutExpired:
            continue
        if done.returncode == 0:
            found.append(done.stdout)
    return "\n".join(found)
