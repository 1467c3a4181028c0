"""The captured answers that have come since the last look at a store."""

from __future__ import annotations

import datetime
import itertools
import sys
from collections.abc import Iterator
from typing import Any

from slipstream_gateway.capture.store import CaptureStore, StoredFile

from slipstream_tools.drafts.selection import Selection

_COLUMNS = ("request_class", "time", "target", "arm", "output_tokens", "drafted", "accepted", "steps")
_LATE = datetime.timedelta(minutes=10)
"""Largest delay of a row. Older rows are left out, because `forget` replaces files, and the rows of a replaced file
would count twice."""


class NewAnswers:
    """Reads each file of the selected answers once.

    `latest` is the time of the latest row, None before the first one. `target` is the target of the last row. `read`
    has the paths of the files that were read.
    """

    def __init__(self, store: CaptureStore, selection: Selection) -> None:
        self._store, self._selection = store, selection
        self.latest: datetime.datetime | None = None
        self.target = ""
        self.read: set[str] = set()
        self._unread: set[str] = set()

    def rows(self) -> Iterator[dict[str, Any]]:
        """The new rows, day after day, and within a day by their times. Raises `OSError` if the store cannot be
        listed."""
        files = [file for file in self._selection.files(self._store) if file.path not in self.read]
        oldest = None if self.latest is None else self.latest - _LATE
        for _, of_day in itertools.groupby(files, key=lambda file: file.date):
            rows = sorted((row for file in of_day for row in self._rows_of(file, oldest)), key=lambda row: row["time"])
            if rows:  # the clock of a gateway may be fast
                latest = min(rows[-1]["time"], datetime.datetime.now(datetime.UTC))
                self.latest = latest if self.latest is None else max(self.latest, latest)
                self.target = rows[-1]["target"]
            yield from rows

    def _rows_of(self, file: StoredFile, oldest: datetime.datetime | None) -> list[dict[str, Any]]:
        """The rows of a file. Empty, with a message, if the file cannot be read now."""
        try:
            rows: list[dict[str, Any]] = self._selection.of_file(self._store, file, _COLUMNS).to_pylist()
        except OSError as exc:
            if file.path not in self._unread:
                print(f"{file.path}: {exc.strerror or exc}", file=sys.stderr, flush=True)
            self._unread.add(file.path)
            return []
        self.read.add(file.path)
        if oldest is None or file.path in self._unread:
            return rows
        return [row for row in rows if row["time"] > oldest]
