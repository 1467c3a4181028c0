"""The events of `slipstream drafts follow`. They are lines of JSON in a file. A later run continues from there."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, TextIO

import msgspec
from slipstream_core.errors import CommandError, named_os_errors

DRIFT, TRAINED, NOT_BETTER, NOT_TRAINED = "drift", "trained", "not_better", "not_trained"
FILE, _LOCK = "events.jsonl", ".lock"
Time = Annotated[datetime, msgspec.Meta(tz=True)]


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event of a class of a pair.

    `time` is the time of the last answer that was read. `since` is the time of the first answer to train on. `answers`
    is the number of answers since then. `draft` is the folder name of the trained draft. In the events of a failed
    training, and of a draft that was no better, it is the folder name of the trained draft that the training started
    from.
    """

    event: str
    pair: str
    request_class: str = msgspec.field(name="class")
    time: Time
    since: Time
    answers: int = 0
    draft: Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9-]*\Z")] = ""
    sha256: str = ""
    reason: str = ""
    tokens_per_step: float | None = None
    before: float | None = None


class Events:
    """The file `events.jsonl` of `folder`. Raises `CommandError` if it has events of another pair."""

    def __init__(self, folder: Path, pair: str) -> None:
        self._path = folder / FILE
        self._found = list(self._read())
        if others := sorted({event.pair for event in self._found} - {pair}):
            raise CommandError(f"{folder} is of the pair {others[0]}: give each pair a folder of its own.")

    def add(self, event: Event) -> None:
        """Write `event`, and print it. Raises `CommandError` if it cannot be written."""
        line = msgspec.json.encode(event)
        with named_os_errors(self._path):
            self._write(line)
        self._found.append(event)
        print(line.decode(), flush=True)

    def _write(self, line: bytes) -> None:
        with self._path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                file.write(b"" if file.read(1) == b"\n" else b"\n")  # after a line that was not written whole
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def last(self) -> dict[str, Event]:
        """The last event of each class."""
        return {event.request_class: event for event in self._found}

    def drifts(self) -> dict[str, datetime]:
        """The time of the last drift of each class."""
        return {event.request_class: event.time for event in self._found if event.event == DRIFT}

    def drafts(self, request_class: str) -> list[str]:
        """The folders of the class's trained drafts, the oldest first."""
        return [each.draft for each in self._found if (each.event, each.request_class) == (TRAINED, request_class)]

    def _read(self) -> Iterator[Event]:
        lines = self._path.read_bytes().splitlines() if self._path.exists() else []
        for number, line in enumerate(lines, 1):
            try:
                yield msgspec.json.decode(line, type=Event)
            except (msgspec.DecodeError, UnicodeDecodeError) as exc:
                print(f"{self._path}:{number} is left out: {exc}", file=sys.stderr)


def locked(folder: Path) -> TextIO:
    """The lock of `folder`, for this process alone until it is closed. Raises `CommandError` if the folder cannot be
    made, or another process has it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (folder / _LOCK).open("w")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CommandError(f"another process follows the traffic in {folder}.") from None
    except OSError as exc:
        raise CommandError(f"{folder}: {exc.strerror or exc}") from exc
    return lock
