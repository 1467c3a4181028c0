"""Deletes captured answers for good."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
from slipstream_gateway.capture.store import CaptureStore, StoredFile


class Forgotten(NamedTuple):
    """The number of deleted answers and files, and the errors of files that are still there."""

    answers: int
    files: int
    errors: Sequence[str]


def forget(store: CaptureStore, pair: str | None, *, key: str | None, before: datetime.date | None) -> Forgotten:
    """Delete the answers of the API key `key`, or all files of days before `before`. Files that cannot be read or
    deleted do not keep the others.

    Answers that a gateway still holds are written within half a minute after their request: delete again after that.
    """
    answers = files = 0
    errors: list[str] = []
    for file in store.files(pair):
        try:
            if before is not None:
                if file.date < before:
                    store.delete(file)
                    files += 1
            elif key is not None:
                deleted = _forget_key(store, file, key)
                answers += deleted
                files += deleted > 0
        except FileNotFoundError:
            if key is not None:
                errors.append(f"{file.path} has changed meanwhile: try again")
        except OSError as exc:
            errors.append(str(exc))
    return Forgotten(answers, files, errors)


def _forget_key(store: CaptureStore, file: StoredFile, key: str) -> int:
    """Delete the answers of `key` in one file. Returns their number."""
    table = store.read(file)
    kept = table.filter(pa.array([each != key for each in table.column("key").to_pylist()], pa.bool_()))
    if kept.num_rows < table.num_rows:
        store.replace(file, kept)
    return int(table.num_rows - kept.num_rows)
