"""The real package `speculators`, which trains drafts: beside vLLM's environment, which has most of what it needs."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from slipstream_tools.up.vllm_environment import VllmInstall

_REQUIREMENTS = Path(__file__).with_suffix(".txt")
_CACHE = Path("~/.cache/slipstream").expanduser()
_READ = """
import json, sys
from speculators.data_generation.preprocessing import build_speculator_training_dataset, load_raw_dataset
rows, _ = load_raw_dataset(sys.argv[1])
dataset = build_speculator_training_dataset(dataset=rows, processor=None, max_length=4096, num_proc=1)
print("rows:" + json.dumps([{name: row[name].tolist() for name in ("input_ids", "loss_mask")} for row in dataset]))
"""


def training_rows(install: VllmInstall, path: Path) -> list[dict[str, Any]]:
    """The rows that `speculators prepare-data` makes of the JSON lines in `path`."""
    done = subprocess.run(
        [str(install.python), "-c", _READ, str(path)],
        env={
            **os.environ,
            "PYTHONPATH": str(_packages()),
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(path.parent / "cache"),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("rows:")]
    rows: list[dict[str, Any]] = json.loads(line.removeprefix("rows:"))
    return rows


def _packages() -> Path:
    """A folder with the packages, in the user's cache. The first call fills it."""
    folder = _CACHE / f"speculators-{hashlib.sha256(_REQUIREMENTS.read_bytes()).hexdigest()[:12]}"
    _CACHE.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
            subprocess.run([*pip, "--target", str(folder), "-r", str(_REQUIREMENTS)], check=True)
            (folder / "complete").touch()
    return folder
