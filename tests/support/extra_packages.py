"""Packages outside the environment of the tests, each set in a folder of its own in the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
from pathlib import Path

CACHE = Path("~/.cache/slipstream").expanduser()


def extra_packages(requirements: Path) -> Path:
    """The folder with the packages of this file, and with no others. The first call fills it."""
    folder = CACHE / f"{requirements.stem}-{hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
            subprocess.run([*pip, "--target", str(folder), "-r", str(requirements)], check=True)
            (folder / "complete").touch()
    return folder
