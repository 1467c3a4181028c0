"""The private folder of a command that starts servers.

Triton starts the process of a Python model by a shell command without quotes, in which the paths of this folder stand.
A character with a meaning to the shell would end the path: the process does not start, and Triton waits for it.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from slipstream_core.errors import CommandError

_OTHERS = ("/tmp", "/var/tmp")  # nosec B108 # the folder in it is private
_OF_THE_SHELL = re.compile(r"[\s\"'`$\\;&|<>()\[\]{}*?!#~\x00-\x1f]")


def make_run_folder(prefix: str, *, report: Callable[[str], None], others: Sequence[str] = _OTHERS) -> Path:
    """Creates a private folder in the folder for temporary files, or in one of `others` if the path of the first has a
    character of the shell.

    Raises:
        CommandError: none of them is fit and writable.
    """
    usual = tempfile.gettempdir()
    if is_fit_for_shell(usual):
        return Path(tempfile.mkdtemp(prefix=prefix))
    for folder in others:
        if is_fit_for_shell(folder) and os.access(folder, os.W_OK | os.X_OK):
            report(f"{unfit(usual)}; {folder} is used instead")
            return Path(tempfile.mkdtemp(prefix=prefix, dir=folder))
    raise CommandError(f"{unfit(usual)}, and {' or '.join(others)} cannot be used; set TMPDIR to another folder")


def is_fit_for_shell(path: str | Path) -> bool:
    """Whether a shell reads `path` as one word, without quotes."""
    return not _OF_THE_SHELL.search(os.fspath(path))


def unfit(path: str | Path) -> str:
    """The reason why `path` is not fit for Triton."""
    found = _OF_THE_SHELL.search(os.fspath(path))
    character = found[0] if found else ""
    return f"the path {str(path)!r} has the character {character!r}, with which Triton cannot start a model"
