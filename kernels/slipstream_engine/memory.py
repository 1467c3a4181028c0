"""How much memory this process may still take before the kernel ends it."""

from __future__ import annotations

from pathlib import Path

_GROUPS = (
    # The limit of a container, its use, and the part of that which the kernel gives back: cgroups(7), version 2 and 1.
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)


def available_bytes(root: Path = Path("/")) -> int | None:
    """The memory that is available on the machine, or that the container's limit leaves, if that is less. None where
    the system does not say, as without Linux. `root` has the folders `proc` and `sys`."""
    known = [_of_machine(root / "proc/meminfo"), *(_of_group(root / "sys/fs/cgroup", *names) for names in _GROUPS)]
    return min((size for size in known if size is not None), default=None)


def _of_machine(meminfo: Path) -> int | None:
    kilobytes = _counts(meminfo).get("MemAvailable:")
    return None if kilobytes is None else 1024 * kilobytes


def _of_group(folder: Path, limit: str, used: str, given_back: str) -> int | None:
    try:
        size = int((folder / limit).read_text()) - int((folder / used).read_text())
    except (OSError, ValueError):  # no such version, or no limit ("max")
        return None
    return max(size + _counts((folder / used).with_name("memory.stat")).get(given_back, 0), 0)


def _counts(file: Path) -> dict[str, int]:
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return {}
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdecimal()}
