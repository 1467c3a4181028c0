"""The memory that is left for this process. The kernel ends processes that use more."""

from __future__ import annotations

from pathlib import Path

_GROUPS = (
    # A container's limit, its use, and the reclaimable part of this use: control groups of version 2 and of version 1.
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)


def available_bytes(root: Path = Path("/")) -> int | None:
    """The smaller of two sizes: the machine's available memory (`MemAvailable` of proc(5)), and the container's limit
    less its use. None where neither is known, as on systems without `/proc`. `root` has the folders `proc` and `sys`.
    """
    known = [_of_machine(root / "proc/meminfo"), *(_of_group(root / "sys/fs/cgroup", *names) for names in _GROUPS)]
    return min((size for size in known if size is not None), default=None)


def _of_machine(meminfo: Path) -> int | None:
    kilobytes = _counts(meminfo).get("MemAvailable:")
    return None if kilobytes is None else 1024 * kilobytes


def _of_group(folder: Path, limit: str, used: str, reclaimable: str) -> int | None:
    try:
        size = int((folder / limit).read_text()) - int((folder / used).read_text())
    except (OSError, ValueError):  # no such version, or no limit ("max")
        return None
    return max(size + _counts((folder / used).with_name("memory.stat")).get(reclaimable, 0), 0)


def _counts(file: Path) -> dict[str, int]:
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return {}
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdecimal()}
