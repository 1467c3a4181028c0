"""A shell in which documented commands run: our command line, `helm` and `kubectl` in front of real servers."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

from tests.support.command import has_ended
from tests.support.doc_blocks import Block
from tests.support.polling import eventually

TIMEOUT_S = 120.0


class Shell:
    """`bash` with a PATH, a HOME and a working folder of the test's own.

    `replaced` says what a command means here: an address, a port, a namespace. It names whole pieces of text, and each
    must be in the block that it is for.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.environment = dict(environment)

    def script(self, block: Block, replaced: Mapping[str, str] | None = None) -> str:
        text = "\n".join(block.commands)
        for old, new in (replaced or {}).items():
            assert old in text, f"{block}: no {old!r} in it"
            text = text.replace(old, new)
        return text

    def run(self, block: Block, replaced: Mapping[str, str] | None = None, *, folder: Path | None = None) -> str:
        """What the block's commands print; the test fails at the first command that fails."""
        script = "set -euo pipefail\n" + self.script(block, replaced)
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=folder or self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def serving(self, block: Block, replaced: Mapping[str, str], *, url: str) -> Iterator[None]:
        """While the block's last command serves at `url`."""
        script = "set -euo pipefail\n" + self.script(block, replaced)
        log = self.folder / "serving.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", script],
                cwd=self.folder,
                env=self.environment,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        try:
            until(lambda: process.poll() is not None or _answers(url), log.read_text)
            assert process.poll() is None, log.read_text()
            yield
        finally:
            if process.poll() is None:
                started = psutil.Process(process.pid).children(recursive=True)
                os.killpg(process.pid, signal.SIGTERM)
                until(lambda: all(map(has_ended, started)), log.read_text)  # the shell ends before them
            process.wait(TIMEOUT_S)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health/ready", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def until(holds: Callable[[], bool], said: Callable[[], str] = str) -> None:
    """Wait for it; where it does not come, fail with what `said` returns."""
    eventually(holds, within_s=TIMEOUT_S, seen=said)
