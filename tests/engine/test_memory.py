"""The memory that machine and container leave for a process."""

from __future__ import annotations

from pathlib import Path

import pytest
from slipstream_engine.drafts.memory import available_bytes

MACHINE = {"proc/meminfo": "MemTotal:  8000 kB\nMemAvailable:  6000 kB\nHugePages_Total:  0\n"}
V1 = "sys/fs/cgroup/memory/memory"


def group(limit: str, used: str = "3000000", given_back: str = "inactive_file 1000000\n") -> dict[str, str]:
    return {
        f"sys/fs/cgroup/memory.{name}": text
        for name, text in zip(("max", "current", "stat"), (limit, used, given_back), strict=True)
    }


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (MACHINE, 6000 * 1024),
        (MACHINE | group("5000000"), 3_000_000),
        (MACHINE | group("5000000", given_back=""), 2_000_000),
        (MACHINE | group("2000000", given_back=""), 0),
        (MACHINE | group("50000000000"), 6000 * 1024),
        (MACHINE | group("max"), 6000 * 1024),
        (group("5000000"), 3_000_000),
        (
            MACHINE
            | {
                f"{V1}.limit_in_bytes": "5000000\n",
                f"{V1}.usage_in_bytes": "3000000\n",
                f"{V1}.stat": "total_inactive_file 1\n",
            },
            2_000_001,
        ),
        ({}, None),
    ],
)
def test_the_least_of_machine_and_container(files: dict[str, str], expected: int | None, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_bytes(tmp_path) == expected


def test_this_machine_has_memory() -> None:
    available = available_bytes()
    assert available is not None
    assert available > 2**20
