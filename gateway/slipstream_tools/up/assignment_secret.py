"""The secret of a user's gateways for assigning requests to arms, created once, so that all of them assign alike."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from slipstream_core.environment import assignment_secret, cache_folder

_FILE = "assignment-secret"


def secret_options(folder: Path | None = None) -> tuple[str, ...]:
    """The gateway's options for the secret in `folder` (the user's cache folder), which is created if missing. No
    options if the environment has a secret, or if the folder is not writable; the gateway then generates one."""
    if assignment_secret() is not None:
        return ()
    path = (folder or cache_folder()) / _FILE
    try:
        if not path.exists():
            _make(path)
    except OSError:
        return ()
    return ("--assignment-secret", str(path))


def _make(path: Path) -> None:
    """Creates the file atomically, and never replaces one that another process has created meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        with suppress(FileExistsError):
            path.hardlink_to(new)
    finally:
        new.unlink(missing_ok=True)
