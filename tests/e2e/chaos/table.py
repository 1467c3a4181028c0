"""One table of what was measured: fault, goal, measured, pass or miss; and the same as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

_FAULT, _GOAL = 34, 44


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One row. `passed` None: it could not be measured here, and `measured` says why. `figures` go into the JSON,
    `notes` below the table."""

    fault: str
    goal: str
    measured: str
    passed: bool | None
    figures: Mapping[str, Any] = {}
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def result(self) -> str:
        return {True: "pass", False: "MISS", None: "n/a"}[self.passed]


def head() -> str:
    return f"{'fault':{_FAULT}} {'goal':{_GOAL}} result  measured"


def row(reading: Reading) -> str:
    took = f" [{reading.seconds:.0f} s]" if reading.seconds else ""
    lines = [f"{reading.fault:{_FAULT}} {reading.goal:{_GOAL}} {reading.result:6}  {reading.measured}{took}"]
    return "\n".join([*lines, *(f"    {note}" for note in reading.notes)])


def last_line(readings: Sequence[Reading]) -> str:
    missed = sum(reading.passed is False for reading in readings)
    absent = sum(reading.passed is None for reading in readings)
    passed = len(readings) - missed - absent
    return f"{passed} passed, {missed} missed" + (f", {absent} not available here" if absent else "")


def write_json(readings: Sequence[Reading], path: Path) -> None:
    path.write_text(json.dumps(msgspec.to_builtins(readings), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
