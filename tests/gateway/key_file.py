"""Files of keys as `slipstream keys` makes them."""

from __future__ import annotations

import contextlib
import io
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from slipstream_tools.cli import main


class Keys:
    """A file of keys, and the command that changes it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, *arguments: str) -> str:
        """What the command prints. Fails the test where the command does."""
        code, out, err = self._outcome(*arguments)
        assert code == 0, err
        return out

    def fail(self, *arguments: str) -> str:
        """The command's one line of error."""
        code, _, err = self._outcome(*arguments)
        assert code == 1
        return err

    def create(self, *options: str) -> str:
        """A fresh key's text."""
        return self.run("create", *options)

    def records(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.run("list", "--json"))
        return found

    def _outcome(self, command: str, *options: str) -> tuple[int, str, str]:
        """In a thread: a browser's event loop may run in this one."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), ThreadPoolExecutor(1) as thread:
            code = thread.submit(main, ["keys", command, "-f", str(self.path), *options]).result()
        return code, out.getvalue().strip(), err.getvalue().strip()
