"""Runs `pip` in a virtual environment, reports its progress and explains its failure in one line."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from slipstream_core.errors import CommandError

from slipstream_tools.up.cache import Report
from slipstream_tools.up.processes import Child, Stopped

REPORT_S = 15.0
_POLL_S = 0.1
_STOP_S = 5.0
_NO_SPACE = "No space left on device"
_NO_NETWORK = re.compile(
    "NewConnectionError|NameResolutionError|Temporary failure in name resolution|Network is unreachable|"
    "ConnectTimeout|ReadTimeout|ProxyError|Connection refused|Could not fetch URL"
)
_COLLECTED = re.compile(r"^(?:Collecting|Processing) (\S+)", re.MULTILINE)


class PipError(CommandError):
    """pip failed; `output` is its whole output."""

    def __init__(self, message: str, *, output: str) -> None:
        super().__init__(message)
        self.output = output


class PipRunner:
    """Runs commands for one installation, one after the other. Their output is appended to `log_path`."""

    def __init__(self, *, log_path: Path, report: Report, stopping: Callable[[], bool]) -> None:
        self._log_path = log_path
        self._report = report
        self._stopping = stopping

    def pip(self, python: Path, arguments: Sequence[str], *, what: str, packages: int | None = None) -> None:
        """Runs `python -m pip` with `arguments`. `packages`: the expected number of packages, for the progress lines.

        Raises:
            PipError: pip failed; the message starts with `what`.
            Stopped: `stopping()` became true; pip is stopped.
        """
        command = [str(python), "-m", "pip", *arguments, "--no-input"]
        self.run(command, what=what, progress=lambda output: _progress(output, packages))

    def run(self, command: Sequence[str], *, what: str, progress: Callable[[str], str] = lambda _: "working") -> None:
        """As `pip`, for any command. `progress` turns its output so far into a progress line."""
        self._log_path.touch()
        start = self._log_path.stat().st_size
        child = Child(name="pip", command=command, log_path=self._log_path, env=_environment())
        began = reported = time.monotonic()
        try:
            while not child.wait(_POLL_S):
                if self._stopping():
                    raise Stopped
                if time.monotonic() - reported >= REPORT_S:
                    reported = time.monotonic()
                    self._report(f"{reported - began:4.0f} s: {progress(self._output(start))}")
        finally:
            child.stop(timeout_s=_STOP_S)
        if child.exit_code != 0:
            output = self._output(start)
            raise PipError(f"{what}: {_failure(output)}; the log: {self._log_path}", output=output)

    def _output(self, start: int) -> str:
        with self._log_path.open("rb") as log:
            log.seek(start)
            return log.read().decode(errors="replace")


def _environment() -> dict[str, str]:
    """Our environment without the variables that would make another Python import our packages."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def _progress(output: str, packages: int | None) -> str:
    """The present phase of pip, from its output so far."""
    if "Installing collected packages" in output:
        return "unpacking"
    collected = _COLLECTED.findall(output)
    if not collected:
        return "looking for packages"
    count = f"{len(collected)} of {packages} packages, " if packages else ""
    return f"downloading: {count}{Path(collected[-1]).name}"


def _failure(output: str) -> str:
    """The cause of the failure: a known one with a remedy, else the last error line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    last = next((line for line in reversed(lines) if line.startswith("ERROR:")), lines[-1] if lines else "no output")
    if _NO_SPACE in output:
        return "there is no space left on the disk"
    if _NO_NETWORK.search(output):
        return f"the package index is unreachable ({last.removeprefix('ERROR: ')})"
    return last.removeprefix("ERROR: ")
