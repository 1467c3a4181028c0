"""The deletion of captured answers past their retention."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from contextlib import suppress

from slipstream_gateway.capture.store import CaptureStore

_LEFT_S = 600.0


def delete_expired(store: CaptureStore, retention_days: Mapping[str, int], now: datetime.datetime) -> Iterator[OSError]:
    """Deletes the files of all pairs that are older than their retention, and the unfinished files of writers that
    were killed. Yields an error for each file that cannot be deleted. `retention_days` has the present policy's days by
    the folder of a pair: the shorter of these and the file's own days counts."""
    try:
        files = store.files()
    except OSError as exc:
        yield exc
        return
    with suppress(OSError):
        store.delete_leftovers(now.timestamp() - _LEFT_S)
    for file in files:
        most_days = min(file.retention_days, retention_days.get(file.pair, file.retention_days))
        if (now.date() - file.date).days >= most_days:
            try:
                store.delete(file)
            except FileNotFoundError:
                pass  # another gateway's writer has deleted it
            except OSError as exc:
                yield exc
