"""What is written about the use of captured answers."""

from __future__ import annotations

import getpass
import os


def user() -> str:
    """The name of this process's user."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return str(os.getuid())
