"""The events of `slipstream drafts follow`: lines of JSON, from which a later run goes on."""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path
from typing import Any

from slipstream_core.errors import CommandError

DRIFT, TRAINED, NOT_BETTER, NOT_TRAINED = "drift", "trained", "not_better", "not_trained"
FILE = "events.jsonl"
Event = dict[str, Any]


class Events:
    """The file `events.jsonl` of a folder. Each event has `event`, `class`, and `time`: that of the answer with which
    the class's next events begin."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._found = self._read()

    def add(self, event: str, request_class: str, time: datetime.datetime, **fields: Any) -> None:
        line = {"event": event, "class": request_class, "time": time.isoformat(), **fields}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)
        self._found.append(line)

    def last(self) -> dict[str, Event]:
        """The last event of each class."""
        return {event["class"]: event for event in self._found}

    def known(self) -> dict[str, datetime.datetime]:
        """Until when each class's answers have been judged."""
        return {name: datetime.datetime.fromisoformat(event["time"]) for name, event in self.last().items()}

    def drafts(self, request_class: str) -> list[str]:
        """The folders of the class's trained drafts, the oldest first."""
        return [event["draft"] for event in self._found if (event["event"], event["class"]) == (TRAINED, request_class)]

    def _read(self) -> list[Event]:
        if not self._path.exists():
            return []
        found: list[Event] = []
        for number, line in enumerate(self._path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                event = json.loads(line)
                datetime.datetime.fromisoformat(event["time"])
                found.append({"draft": "", **event, "event": str(event["event"]), "class": str(event["class"])})
            except (ValueError, KeyError, TypeError) as exc:
                print(f"{self._path}:{number} is left out: {exc!r}", file=sys.stderr)
        return found


def make_folder(folder: Path) -> None:
    """Raises `CommandError` if it cannot be there."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise CommandError(f"{folder}: {exc.strerror or exc}") from exc
