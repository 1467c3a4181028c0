"""The audit log: decisions by key, and changes by administrators, as JSON lines (https://jsonlines.org).

It has no prompts, answers or secrets; keys appear by their public ids. A thread writes from a bounded buffer, so that a
slow disk delays no request. Lines that a full disk refuses are kept there and written later. Lines beyond the bound are
dropped and counted, in the log and by a metric.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from slipstream_core.manifest.capture import Capture

from slipstream_gateway.capture.copies import captures_of
from slipstream_gateway.fleet.snapshot import Snapshot
from slipstream_gateway.request.outcome import Outcome, Recorder

_STDOUT = 1
MAX_PENDING = 20_000
FLUSH_S = 0.25
REFUSALS_PER_FLUSH = 10
_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode
_Line = Callable[[], dict[str, Any]]


class Audit:
    """The log of one gateway. Methods are quick, raise nothing, and run on the event loop's thread only."""

    def __init__(self, sink: LineSink | None) -> None:
        self._sink = sink
        self._pending: list[_Line] = []
        self._kept: list[bytes] = []  # which could not be written
        self._refusals: dict[str, int] = {}
        self._dropped = 0
        self.dropped_total = 0

    @property
    def is_on(self) -> bool:
        return self._sink is not None

    @property
    def waiting(self) -> int:
        """The number of lines that are not written yet."""
        return len(self._pending) + len(self._kept)

    def decision(self, outcome: Outcome) -> None:
        """A finished request."""
        if self._sink is not None:
            at_s = time.time()
            self._add(lambda: _decision(at_s, outcome))

    def event(self, kind: str, *, who: str = "", **about: str | int | float | bool) -> None:
        """A change by `who`: `kill`, `unkill`, `keys`, `configuration`, …"""
        if self._sink is not None:
            line = {"time": _stamp(time.time()), "event": kind, "who": who, **about}
            self._add(lambda: line)

    def refused(self, error: str) -> None:
        """A request that was refused before a decision. Many of a kind become one line with their count."""
        if self._sink is not None:
            self._refusals[error] = self._refusals.get(error, 0) + 1
            if self._refusals[error] <= REFUSALS_PER_FLUSH:
                line = {"time": _stamp(time.time()), "event": "refused", "error": error}
                self._add(lambda: line)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Writes lines while the context lasts, and the remaining ones at its end."""
        if self._sink is None:
            yield
            return
        stopping = asyncio.Event()
        task = asyncio.create_task(self._flush_until(stopping))
        try:
            yield
        finally:
            stopping.set()  # not cancelled: a line that is being written is written
            await task
            await self._flush()
            self._sink.close()
            if self._kept:
                self.dropped_total += len(self._kept)
                _log.error("the audit log loses %d lines, which could not be written", len(self._kept))

    def _add(self, line: _Line) -> None:
        if self.waiting < MAX_PENDING:
            self._pending.append(line)
        else:
            self._dropped += 1
            self.dropped_total += 1

    async def _flush_until(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    await stopping.wait()
            await self._flush()

    async def _flush(self) -> None:
        self._sum_up()
        lines, self._pending = self._pending, []
        if (lines or self._kept) and self._sink is not None:
            self._kept = await asyncio.to_thread(self._sink.write, lines, self._kept)

    def _sum_up(self) -> None:
        """Adds lines with the counts of omitted ones; these are never dropped. Refusals count on while there is no
        room for such a line."""
        if self.waiting < MAX_PENDING:
            for error, count in self._refusals.items():
                if count > REFUSALS_PER_FLUSH:
                    line: dict[str, Any] = {"time": _stamp(time.time()), "event": "refused", "error": error}
                    self._pending.append(partial(dict, line, more=count - REFUSALS_PER_FLUSH))
            self._refusals.clear()
        if self._dropped and not self._kept:  # after the lines that were before them
            dropped, self._dropped = self._dropped, 0
            line = {"time": _stamp(time.time()), "event": "dropped", "lines": dropped}
            self._pending.append(lambda: line)


class LineSink:
    """Appends whole lines to a file that several processes share, or to a stream. A file that was moved away is
    reopened under its name, so that rotation needs no signal."""

    def __init__(self, path: Path | None) -> None:
        """`path` None: the standard output. Raises `OSError` where the file cannot be opened."""
        self._path = path
        self._descriptor = _STDOUT if path is None else _open(path)
        self._failing = False
        self._is_torn = False  # the file ends within a line

    def write(self, lines: list[_Line], kept: list[bytes]) -> list[bytes]:
        """Writes `kept`, the result of the call before, and `lines`; blocks. Returns the lines that could not be
        written, and logs the first error."""
        encoded = [*kept, *(_encode(line()) + b"\n" for line in lines)]
        written = 0
        try:
            self._follow()
            if self._is_torn:
                os.write(self._descriptor, b"\n")
                self._is_torn = False
            data = b"".join(encoded)
            while written < len(data):  # usually one call, which is atomic on a local file system (`O_APPEND`)
                written += os.write(self._descriptor, data[written:])
        except OSError as exc:
            if not self._failing:
                _log.error("the audit log %s cannot be written: %s", self._path or "on stdout", exc.strerror or exc)
            self._failing = True
        else:
            self._failing = False
        return self._unwritten(encoded, written)

    def _unwritten(self, encoded: list[bytes], written: int) -> list[bytes]:
        """The lines after the first `written` bytes, the one that they end within included."""
        for index, line in enumerate(encoded):
            if written < len(line):
                self._is_torn = self._is_torn or written > 0
                return encoded[index:]
            written -= len(line)
        return []

    def close(self) -> None:
        if self._path is not None:
            os.close(self._descriptor)

    def _follow(self) -> None:
        if self._path is None:
            return
        held = os.fstat(self._descriptor)
        if held.st_size:  # another process may have been stopped within a line
            self._is_torn = os.pread(self._descriptor, 1, held.st_size - 1) != b"\n"
        try:
            named = os.stat(self._path)
        except FileNotFoundError:
            named = None
        if named is None or (named.st_dev, named.st_ino) != (held.st_dev, held.st_ino):
            descriptor = _open(self._path)
            os.close(self._descriptor)
            self._descriptor = descriptor
            self._is_torn = False


class AuditRecorder(Recorder):
    """Writes finished and rejected requests to the audit log."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    def record(self, outcome: Outcome) -> None:
        self._audit.decision(outcome)

    def rejected(self, error: str) -> None:
        self._audit.refused(error)


def swaps(audit: Audit) -> Callable[[Snapshot | None, Snapshot], None]:
    """A callback for each new routing table: logs its generation, changed kill switches and changed capture."""

    def swapped(before: Snapshot | None, after: Snapshot) -> None:
        if before is None or before.table.generation != after.table.generation:
            audit.event("configuration", generation=after.table.generation, models=len(after.routes))
        killed = before.killed if before is not None else frozenset[str]()
        for pair in sorted(after.killed - killed):
            audit.event("kill", who="configuration", pair=pair)
        for pair in sorted(killed - after.killed):
            audit.event("unkill", who="configuration", pair=pair)
        old, new = {} if before is None else captures_of(before.table), captures_of(after.table)
        for pair in sorted(pair for pair in old.keys() | new.keys() if old.get(pair) != new.get(pair)):
            audit.event("capture", who="configuration", pair=pair, **_summary(new.get(pair)))

    return swapped


def _summary(capture: Capture | None) -> dict[str, str | int | float | bool]:
    """The settings for the log: without the words to redact, which may be names."""
    if capture is None:
        return {"on": False}
    return {
        "on": True,
        "share": capture.share,
        "classes": ", ".join(f"{rule.name} {rule.share:g}" for rule in capture.classes),
        "consent": capture.consent,
        "exclude_keys": ", ".join(capture.exclude_keys),
        "redact": ", ".join([*capture.redact, *(pattern.name for pattern in capture.patterns)]),
        "words": len(capture.words),
        "max_bytes_per_day": capture.max_bytes_per_day,
        "max_key_share": capture.max_key_share,
        "retention_days": capture.retention_days,
    }


def _decision(at_s: float, outcome: Outcome) -> dict[str, Any]:
    decision, usage = outcome.decision, outcome.usage
    return {
        "time": _stamp(at_s),
        "event": "decision",
        "request_id": outcome.request_id,
        "key": outcome.key_id,
        "pair": outcome.pair,
        "model": outcome.model,
        "class": decision.request_class,
        "arm": decision.arm,
        "reason": decision.reason,
        "draft_length": decision.draft_length,
        **({"revision": decision.revision} if decision.revision else {}),
        "status": outcome.status,
        "server": outcome.server,
        "prompt_tokens": usage.prompt_tokens,
        "output_tokens": usage.output_tokens,
        "drafted": usage.drafted,
        "accepted": usage.accepted,
        **({"draft": usage.draft} if usage.draft else {}),
        "e2e_s": round(outcome.e2e_s, 6),
        "ttft_s": None if outcome.ttft_s is None else round(outcome.ttft_s, 6),
        "tpot_s": None if outcome.tpot_s is None else round(outcome.tpot_s, 6),
        "resumed": outcome.resumed,
    }


def _stamp(at_s: float) -> str:
    """RFC 3339, in UTC."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
