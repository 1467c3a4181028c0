"""Deletes captured answers for good."""

from __future__ import annotations

import datetime

import pyarrow as pa
from slipstream_gateway.capture.store import CaptureStore


def forget(store: CaptureStore, pair: str | None, *, key: str | None, before: datetime.date | None) -> int:
    """Delete the answers of the API key `key`, and those before a day. Returns their number.

    Answers that a gateway still holds are written within half a minute after their request: delete again after that.
    """
    deleted = 0
    for file in store.files(pair):
        table = store.read(file)
        if before is not None and file.date < before:
            deleted += table.num_rows
            store.delete(file)
        elif key is not None:
            kept = table.filter(pa.array([each != key for each in table.column("key").to_pylist()], pa.bool_()))
            if kept.num_rows < table.num_rows:
                deleted += table.num_rows - kept.num_rows
                store.replace(file, kept)
    return deleted
