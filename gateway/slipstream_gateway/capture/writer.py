"""The process that redacts captured answers and writes them: `python -m slipstream_gateway.capture.writer LOG STORE`.

LOG is the form of its log. It reads frames from its standard input until that ends, and reports what became of the
answers as JSON lines on its standard output. Rows wait in memory for up to `FLUSH_S`, so that files do not become too
small to be useful.
"""

from __future__ import annotations

import datetime
import errno
import logging
import os
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec
import pyarrow as pa
from slipstream_core import logs
from slipstream_core.errors import CommandError
from slipstream_core.manifest.capture import Capture

from slipstream_gateway.capture.frames import STARTED, CaptureCount, Captured, Configured, Frame, FrameReader, Result
from slipstream_gateway.capture.key_use import KeyUse
from slipstream_gateway.capture.redaction.services import service_keys
from slipstream_gateway.capture.retention import delete_expired
from slipstream_gateway.capture.rows import Redactors, Row, row_of, table_of
from slipstream_gateway.capture.store import CaptureStore, folder_of, parquet

FLUSH_S = 30.0
FLUSH_ROWS = 2048
FLUSH_BYTES = 32 * 1024 * 1024
PATIENCE_S = 5.0
_CLEAN_S = 3600.0
_TRIES, _PAUSE_S = 2, 1.0
_READ_BYTES = 1024 * 1024
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_log = logging.getLogger(__name__)


class _TooSlowError(Exception):
    """The patterns of a policy take too long for one answer."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises `_TooSlowError` inside the context after `seconds` of the processor. In the main thread only."""

    def interrupt(*_: object) -> None:
        raise _TooSlowError

    before = signal.signal(signal.SIGVTALRM, interrupt)
    left_s, _ = signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, left_s)
        signal.signal(signal.SIGVTALRM, before)


class _Pending:
    """Rows of one pair that wait to be written."""

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.rows: list[Row] = []
        self.size_bytes = 0


class Writer:
    """Takes frames, and writes their rows. `report` gets what became of them. `clock_s` is monotonic; `now` in UTC."""

    def __init__(
        self,
        store: CaptureStore,
        report: Callable[[CaptureCount], None],
        *,
        clock_s: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
        sleep: Callable[[float], None] = time.sleep,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._store, self._report = store, report
        self._clock_s, self._now, self._sleep = clock_s, now, sleep
        self._patience_s = patience_s
        self._captures: dict[str, Capture] = {}
        self._redactors = Redactors()
        self._use = KeyUse(store)
        self._pending: dict[str, _Pending] = {}
        self._clean_at_s = clock_s()
        self._failing = False

    def take(self, frame: Frame) -> None:
        if isinstance(frame, Configured):
            self._captures[frame.pair] = frame.capture
            self._clean_at_s = self._clock_s()  # its retention may be shorter now
        else:
            self._add(frame)

    def due_s(self) -> float:
        """The seconds until `tick` must be called."""
        flushes_s = [pending.since_s + FLUSH_S for pending in self._pending.values()]
        return max(0.0, min([self._clean_at_s, *flushes_s]) - self._clock_s())

    def tick(self) -> None:
        """Write the rows that have waited for `FLUSH_S`, and delete expired files once an hour."""
        for pair, pending in list(self._pending.items()):
            if self._clock_s() - pending.since_s >= FLUSH_S:
                self._flush(pair)
        if self._clock_s() >= self._clean_at_s:
            self._clean_at_s = self._clock_s() + _CLEAN_S
            days = {folder_of(pair): capture.retention_days for pair, capture in self._captures.items()}
            for error in delete_expired(self._store, days, self._now()):
                self._say_failing(error)

    def close(self) -> None:
        """Write all rows."""
        for pair in list(self._pending):
            self._flush(pair)

    def _add(self, captured: Captured) -> None:
        pair = captured.pair
        try:
            with time_limit(self._patience_s):
                row = row_of(captured, self._redactors.of(pair, self._captures[pair]))
        except (_TooSlowError, TimeoutError):
            self._tell(pair, Result.TOO_SLOW, 1)
            return
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):  # their messages may quote the answer
            self._tell(pair, Result.UNREADABLE, 1)
            return
        pending = self._pending.setdefault(pair, _Pending(self._clock_s()))
        pending.rows.append(row)
        pending.size_bytes += len(captured.request) + sum(map(len, captured.wire))
        if len(pending.rows) >= FLUSH_ROWS or pending.size_bytes >= FLUSH_BYTES:
            self._flush(pair)

    def _flush(self, pair: str) -> None:
        rows = self._pending.pop(pair).rows
        good = _storable(rows)
        if len(good) < len(rows):
            self._tell(pair, Result.UNREADABLE, len(rows) - len(good))
        if good:
            for result, count in self._write(pair, good).items():
                self._tell(pair, result, count)

    def _write(self, pair: str, rows: list[Row]) -> Counter[Result]:
        """The results of `rows`. A store that fails is tried twice."""
        for attempt in range(_TRIES):
            try:
                results = self._put(pair, rows)
            except OSError as exc:
                self._say_failing(exc)
                if exc.errno in _FULL:
                    return Counter({Result.STORE_FULL: len(rows)})
                if attempt + 1 < _TRIES:
                    self._sleep(_PAUSE_S)
            else:
                self._failing = False
                return results
        return Counter({Result.STORE_FAILED: len(rows)})

    def _put(self, pair: str, rows: list[Row]) -> Counter[Result]:
        """Write the rows of the keys that have a share left, if the day has. All gateways' files count."""
        today, capture = self._now().date(), self._captures[pair]
        files, limit = self._store.files(pair, today), capture.max_bytes_per_day
        used = self._use.of(pair, files)
        kept = [row for row in rows if not row["key"] or used.get(row["key"], 0) < capture.max_key_share * limit]
        results = Counter({Result.KEY_FULL: len(rows) - len(kept)})
        if kept:
            data = parquet(table_of(kept))
            is_full = sum(file.size_bytes for file in files) + len(data) > limit
            if not is_full:
                self._store.put(pair, today, data, retention_days=capture.retention_days)
            results[Result.DAY_FULL if is_full else Result.WRITTEN] = len(kept)
        return +results

    def _say_failing(self, error: OSError) -> None:
        if not self._failing:
            _log.error("the capture store fails: %s", error)
        self._failing = True

    def _tell(self, pair: str, result: Result, count: int) -> None:
        self._report(CaptureCount(pair=pair, result=result, answers=count))


def _storable(rows: list[Row]) -> list[Row]:
    """The rows whose values fit into the columns."""
    good = []
    for row in rows:
        try:
            table_of([row])
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            continue
        good.append(row)
    return good


def run(writer: Writer, descriptor: int) -> None:
    """Read frames from `descriptor` until its end."""
    reader = FrameReader()
    while True:
        readable, _, _ = select.select([descriptor], [], [], writer.due_s())
        if readable:
            data = os.read(descriptor, _READ_BYTES)
            if not data:
                break
            for frame in reader.feed(data):
                writer.take(frame)
        writer.tick()
    writer.close()


def print_report(report: CaptureCount) -> None:
    with suppress(OSError):  # the gateway is gone, and what it has sent is still to be written
        os.write(1, msgspec.json.encode(report) + b"\n")


def main(arguments: list[str]) -> int:
    log_format, *place = arguments
    logs.configure("warning", log_format)
    os.umask(0o077)
    service_keys()  # before it gives way to requests: answers that come meanwhile wait
    with suppress(OSError):
        os.write(1, STARTED)
    # It runs while requests leave a processor free. Answers that it cannot process in time are dropped and counted.
    with suppress(OSError):  # not permitted everywhere
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    try:
        store = CaptureStore.at(*place)
    except CommandError as exc:
        logs.tell(f"error: {exc}", logging.ERROR)
        return exc.exit_code
    run(Writer(store, print_report), 0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
