"""`results.jsonl`: a header with the settings, then one row per request, round, concurrency, draft and mode.

Rows are appended as they finish, so that an interrupted run can be continued; an incomplete last line is dropped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, NamedTuple

import msgspec
from slipstream_core.errors import CommandError, named_os_errors

from slipstream_tools.bench.arrivals import Load

RESULTS_FILE = "results.jsonl"
MEASURE: Final = "measure"
WARMUP: Final = "warmup"
Phase = Literal["measure", "warmup"]
RowKey = tuple[str | None, Load, int, int, str]
"""Draft, concurrency, round, request and mode of a row: unique in a file."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that all rows of one file share. `system` is a URL, or a manifest with a hash of its content;
    `digest` covers the requests and their checks."""

    requests: str
    digest: str
    system: str
    modes: tuple[str, ...]
    concurrency: tuple[Load, ...]
    drafts: tuple[str, ...]
    rounds: int
    warmup: int
    seed: int
    timeout_s: float
    model: str | None
    limit: int | None

    def difference(self, other: Settings) -> str | None:
        """The first setting that is not the same in `other`, in words; None where all are."""
        for name in self.__struct_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs and name == "digest":
                return f"the requests were {other.requests} and are {self.requests}, with other content"
            if mine != theirs and name != "requests":  # a renamed file has the same digest
                return f"'{name}' was {_show(theirs)} and is {_show(mine)}"
        return None


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a file, and the first of every session that added rows to it."""

    object: Literal["slipstream.results"] = "slipstream.results"
    version: Literal[1] = 1
    settings: Settings
    skipped_lines: int = 0


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What the client measured of one answer. Times are seconds by its own clock, None where there was nothing to time;
    `tpot_s` is None, too, where all tokens came at once.

    `error` None means a whole answer. `steps` are passes of the target after the prompt, and `rejected_at[i]` counts
    those whose first rejected draft token stood at position i; None and empty where the server reports neither.
    `started_s` is the wall clock's.
    """

    status: int | None = None
    error: str | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    steps: int | None = None
    rejected_at: tuple[int, ...] = ()
    text_hash: str = ""
    started_s: float = 0.0


class Row(Measured, frozen=True, kw_only=True):
    """One request in one mode. An answer that is not in the mode that was asked for has an `error`.

    `request_class` is the gateway's class and `class` (here `label`) the bench file's own, None where it gives none.
    `in_flight` is None in a closed loop, where `concurrency` has the number.
    """

    index: int
    round: int
    mode: str
    label: str | None = msgspec.field(default=None, name="class")
    request: dict[str, Any]
    arm: str | None = None
    reason: str | None = None
    request_class: str | None = None
    draft_length: int | None = None
    saving_ms: float | None = None
    checks: dict[str, float] = {}
    passed: bool | None = None
    concurrency: Load
    phase: Phase
    draft: str | None = None
    in_flight: float | None = None

    @property
    def load(self) -> float:
        """The mean number of requests in flight during the answer, this one included."""
        return self.in_flight if self.in_flight is not None else float(self.concurrency)

    @property
    def key(self) -> RowKey:
        return (self.draft, self.concurrency, self.round, self.index, self.mode)


class Results(NamedTuple):
    """A file's content: measured rows in the order in which they finished; `sessions` counts headers."""

    header: Header
    rows: list[Row]
    sessions: int


def read_results(path: Path) -> Results:
    """All of the file but warm-up rows.

    Raises:
        CommandError: it cannot be read, or a line is neither header nor row; names the line.
    """
    with named_os_errors(f"{path}: cannot be read", exit_code=2), path.open("rb") as file:
        header, rows, sessions, _ = _read(path, file)
    return Results(header, [row for row in rows if row.phase == MEASURE], sessions)


class ResultsFile:
    """A results file to append to. Every row is one write, so that a crash loses one row at most."""

    def __init__(self, path: Path, header: Header) -> None:
        """Create the file, or continue one with the same settings.

        Raises:
            CommandError: the file is from other settings (names the one that differs), or cannot be used.
        """
        self._path = path
        self.finished: set[RowKey] = set()
        with named_os_errors(f"{path}: cannot be written", exit_code=2):
            self._file = path.open("ab", buffering=0)
            is_new = not self._file.tell()
            if not is_new:
                self._go_on(header)
        # The header is written with the first row: a session with nothing left to run adds none.
        self._unwritten: Header | None = None if is_new else header
        if is_new:
            self._write(header)

    def append(self, row: Row) -> None:
        if self._unwritten is not None:
            self._write(self._unwritten)
            self._unwritten = None
        self._write(row)
        if row.phase == MEASURE:
            self.finished.add(row.key)

    def close(self) -> None:
        self._file.close()

    def _go_on(self, header: Header) -> None:
        with self._path.open("rb") as file:
            old, rows, _, whole_bytes = _read(self._path, file)
        if difference := header.settings.difference(old.settings):
            raise CommandError(
                f"{self._path} has other settings: {difference}. Choose another --out, or remove the file.", exit_code=2
            )
        self._file.truncate(whole_bytes)
        self.finished = {row.key for row in rows if row.phase == MEASURE}

    def _write(self, value: Header | Row) -> None:
        with named_os_errors(f"{self._path}: cannot be written"):
            self._file.write(msgspec.json.encode(value) + b"\n")


def _read(path: Path, file: BinaryIO) -> tuple[Header, list[Row], int, int]:
    """Header, rows, sessions, and the number of bytes in complete lines."""
    header: Header | None = None
    rows: list[Row] = []
    sessions = whole_bytes = 0
    for number, line in enumerate(file, start=1):
        if not line.endswith(b"\n"):
            break
        whole_bytes += len(line)
        try:
            if line.startswith(b'{"object":'):
                header = header or msgspec.json.decode(line, type=Header)
                sessions += 1
            else:
                rows.append(msgspec.json.decode(line, type=Row))
        except msgspec.DecodeError as error:
            raise CommandError(
                f"{path}: line {number}: not written by slipstream bench: {error}", exit_code=2
            ) from error
        if header is None:
            break
    if header is None:
        raise CommandError(f"{path}: line 1: not the header of slipstream bench's results", exit_code=2)
    return header, rows, sessions, whole_bytes


def _show(value: object) -> str:
    return ",".join(str(item) for item in value) or "none" if isinstance(value, tuple) else str(value)
