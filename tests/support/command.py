"""The command `slipstream` as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import psutil

from tests.support.polling import PATIENCE_S

SLIPSTREAM = (sys.executable, "-m", "slipstream_tools.cli")
SCRIPT = str(Path(sys.executable).parent / "slipstream")
"""The command as it is installed."""


def run_slipstream(*arguments: str, env: Mapping[str, str] = MappingProxyType({})) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end. `env`: further variables."""
    environment = {**os.environ, **env}
    return subprocess.run(
        [*SLIPSTREAM, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=environment
    )


def arguments_of(process: psutil.Process) -> list[str]:
    """The command line; empty if the process has ended. Watchdogs of servers start a process for each look."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def has_ended(process: psutil.Process) -> bool:
    """Also of a process that its parent has not waited for."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
