"""The tree of the release before this one, whose programs run in the environment of this one."""

from __future__ import annotations

import os
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).parents[2]
RELEASE = "0.2.0"
COMMIT = "d1a71fbd2ca59b070034d030f1511095032ddf66"
"""Stands for the release, which has no tag."""


def extract(folder: Path) -> Path | None:
    """The release's tree in the new `folder`; None if this checkout lacks its commit, as a shallow one does."""
    done = subprocess.run(["git", "archive", COMMIT], cwd=ROOT, check=False, capture_output=True)
    if done.returncode:
        return None
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def environment_of(tree: Path) -> dict[str, str]:
    """The variable by which programs find the packages of `tree`."""
    packages = [str(tree / folder) for folder in ("gateway", "operator", "kernels")]
    return {"PYTHONPATH": os.pathsep.join([*packages, os.environ.get("PYTHONPATH", "")])}
