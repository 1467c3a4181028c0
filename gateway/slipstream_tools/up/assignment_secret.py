"""The secret of a user's gateways for assigning requests to arms, created once, so that all of them assign alike."""

from __future__ import annotations

import itertools
import os
import secrets
from contextlib import suppress
from pathlib import Path

from slipstream_core.environment import assignment_secret, cache_folder
from slipstream_gateway.decide.route.draws import RequestDraws

_FILE = "assignment-secret"
_DEMO, _COMMON = "demo", 0.5


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


def demo_request_id(folder: Path | None = None) -> str:
    """The id of a request that this user's secret neither holds back nor explores: demonstrations show the common
    case."""
    given, options = assignment_secret(), secret_options(folder)
    if given is None and not options:
        return _DEMO  # the gateway makes a secret of its own
    secret = os.fsencode(given) if given is not None else Path(options[1]).read_bytes()
    draws = RequestDraws(secret.rstrip(b"\r\n"))
    names = (_DEMO if number == 1 else f"{_DEMO}-{number}" for number in itertools.count(1))
    return next(name for name in names if min(draws.of(name).hold_back, draws.of(name).exploration) > _COMMON)


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
