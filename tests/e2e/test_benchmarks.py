"""Every benchmark runs in its smallest size and reports figures. The figures themselves are not judged."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.__main__ import BENCHMARKS

ROOT = Path(__file__).parents[2]
# Each takes a few seconds; all the others are marked slow.
QUICK = (
    *("decide", "rollback", "rollback_paired", "rollback_paired_share"),
    *("engine_verify", "quality", "seed_equality"),
)
LIMIT_S = 1200


def figures(row: dict[str, Any]) -> Iterator[float]:
    """All numbers of a row, intervals included."""
    for line in row["rows"]:
        for cell in line.values():
            yield from (
                number for number in (cell if isinstance(cell, list) else [cell]) if isinstance(number, int | float)
            )


@pytest.fixture(autouse=True)
def private_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with a short path, because Chromium's socket in it has a path of at most 107 bytes."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in BENCHMARKS]
)
def test_a_benchmark_runs_and_reports_finite_figures(name: str, tmp_path: Path) -> None:
    file = tmp_path / "row.jsonl"
    command = [sys.executable, "-m", f"tests.benchmarks.{name}", "--smoke", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    [row] = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    assert (row["benchmark"], row["smoke"]) == (name, True)
    found = list(figures(row))
    assert found, done.stdout
    assert all(map(math.isfinite, found)), done.stdout
