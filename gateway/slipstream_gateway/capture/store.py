"""Where captured answers lie: a folder, or a bucket of an S3-compatible store.

    ROOT/PAIR/date=2026-11-26/ID-30d.parquet

PAIR is `namespace.name`, or `name` without a namespace; dates are UTC. The name ends with the days for which the file
is kept, so that it is deleted in time also after its pair is gone. Files are written whole and never changed: a
deletion of rows replaces a file by a new one. Each change that a person makes leaves a file in ROOT/_audit: no pair has
this name.
"""

from __future__ import annotations

import datetime
import os
import posixpath
import re
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl, urlsplit

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from slipstream_core.errors import CommandError
from slipstream_core.file_changes import replace_file

_S3 = "s3://"
_AUDIT, _DATE = "_audit", "date="
_PATH = re.compile(r"(?P<pair>[^/]+)/date=(?P<date>[\d-]{10})/[0-9a-f]+-(?P<days>\d{1,4})d\.parquet")
_LEFTOVER = re.compile(r"\.(?:[0-9a-f]{32}-\d{1,4}d\.parquet|\d{8}T\d{6}Z-[0-9a-f]{8}\.json)(?:\.\d+)?")
_PAIR = re.compile(r"(?:[a-z0-9-]+[/.])?[a-z0-9-]+")
_CONNECT_TIMEOUT_S, _REQUEST_TIMEOUT_S = 5.0, 30.0
_OPTIONS = frozenset({"endpoint_override", "region", "scheme"})


class StoredFile(NamedTuple):
    """One file. `pair` is the folder's name."""

    path: str
    pair: str
    date: datetime.date
    retention_days: int
    size_bytes: int


class CaptureStore:
    """The files below one root. All methods block; store errors are `OSError`."""

    def __init__(self, files: pafs.FileSystem, root: str) -> None:
        self._files, self._root = files, root

    @classmethod
    def at(cls, location: str) -> Self:
        """The store at a folder's path, or at s3://BUCKET/PREFIX. An S3 URL may have the query parameters
        `endpoint_override`, `region` and `scheme`; credentials are AWS's own, from environment variables or the pod's
        identity. Raises `CommandError`."""
        location = check_location(location)
        if not location.startswith(_S3):
            return cls(pafs.LocalFileSystem(), location)
        url = urlsplit(location)
        options = dict(parse_qsl(url.query))
        try:
            files = pafs.S3FileSystem(connect_timeout=_CONNECT_TIMEOUT_S, request_timeout=_REQUEST_TIMEOUT_S, **options)
        except (pa.ArrowException, OSError) as exc:
            raise CommandError(f"{location}: {exc}") from exc
        return cls(files, posixpath.join(url.netloc, url.path.strip("/")).rstrip("/"))

    def put(self, pair: str, date: datetime.date, data: bytes, *, retention_days: int) -> str:
        """Write a new file, whole or not at all. Returns its path."""
        folder = posixpath.join(self._root, folder_of(pair), f"{_DATE}{date.isoformat()}")
        name = f"{uuid.uuid4().hex}-{retention_days}d.parquet"
        self._put(folder, name, data)
        return posixpath.join(folder, name)

    def note(self, event: str, **fields: Any) -> None:
        """Record a change that a person has made."""
        now = datetime.datetime.now(datetime.UTC)
        line = {"time": now.isoformat(timespec="seconds"), "event": event, **fields}
        name = f"{now:%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:8]}.json"
        self._put(posixpath.join(self._root, _AUDIT), name, msgspec.json.encode(line) + b"\n")

    def files(self, pair: str | None = None, date: datetime.date | None = None) -> list[StoredFile]:
        """The files of a pair, or of one of its days, or all, by their date. Raises `CommandError` if `pair` is no name
        of a pair."""
        if pair is not None and not _PAIR.fullmatch(pair):
            raise CommandError(f"a pair is [NAMESPACE/]NAME, got {pair!r}", exit_code=2)
        if pair is not None and date is not None:
            days = [posixpath.join(self._root, folder_of(pair), f"{_DATE}{date.isoformat()}")]
        else:
            days = self._days(pair)
        found = [self._file_of(info) for day in days for info in self._listed(day) if info.is_file]
        return sorted((file for file in found if file is not None), key=lambda file: (file.pair, file.date, file.path))

    def delete_leftovers(self, before_s: float) -> None:
        """Delete what writers that were killed have not finished in a folder before `before_s`, in seconds since 1970.
        S3 stores no incomplete objects."""
        if not isinstance(self._files, pafs.LocalFileSystem):
            return
        for folder in (*self._days(None), posixpath.join(self._root, _AUDIT)):
            for info in self._listed(folder):
                is_old = info.mtime is not None and info.mtime.timestamp() < before_s
                if info.is_file and is_old and _LEFTOVER.fullmatch(info.base_name):
                    with suppress(OSError):
                        self._files.delete_file(info.path)

    def read(self, file: StoredFile, columns: Iterable[str] | None = None) -> pa.Table:
        """The rows of a file. Raises `OSError` also if it is damaged."""
        try:
            with self._files.open_input_file(file.path) as source:
                return pq.read_table(source, columns=None if columns is None else list(columns))
        except pa.ArrowInvalid as exc:
            raise OSError(f"{file.path} is not a Parquet file: {exc}") from exc

    def replace(self, file: StoredFile, table: pa.Table) -> None:
        """Put the rows of `table` in place of those of `file`."""
        new = None
        if table.num_rows:
            new = self.put(file.pair, file.date, parquet(table), retention_days=file.retention_days)
        try:
            self.delete(file)
        except OSError:
            if new is not None:
                self._files.delete_file(new)  # else its rows would be there twice
            raise

    def delete(self, file: StoredFile) -> None:
        self._files.delete_file(file.path)

    def _put(self, folder: str, name: str, data: bytes) -> None:
        if not isinstance(self._files, pafs.LocalFileSystem):
            with self._files.open_output_stream(posixpath.join(folder, name)) as sink:
                sink.write(data)  # S3 stores the object when the stream is closed
            return
        os.makedirs(folder, mode=0o700, exist_ok=True)
        replace_file(Path(folder, name), data, is_private=True)

    def _days(self, pair: str | None) -> list[str]:
        """The folders of days, of one pair or of all pairs. Other folders below the root are never read."""
        if pair is None:
            pairs = [
                info.path for info in self._listed(self._root) if not info.is_file and _PAIR.fullmatch(info.base_name)
            ]
        else:
            pairs = [posixpath.join(self._root, folder_of(pair))]
        days = [info for folder in pairs for info in self._listed(folder)]
        return [info.path for info in days if not info.is_file and info.base_name.startswith(_DATE)]

    def _listed(self, folder: str) -> list[Any]:
        """The files and folders in `folder`."""
        found: list[Any] = self._files.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
        return found

    def _file_of(self, info: Any) -> StoredFile | None:
        found = _PATH.fullmatch(info.path.removeprefix(self._root).lstrip("/"))
        if found is None:
            return None
        try:
            date = datetime.date.fromisoformat(found["date"])
        except ValueError:
            return None
        return StoredFile(info.path, found["pair"], date, int(found["days"]), info.size or 0)


def check_location(location: str) -> str:
    """The location of a store, that of a folder as an absolute path. Raises `CommandError` if it is invalid."""
    if not location.startswith(_S3):
        if "://" in location or not location:
            message = f"a store of captured answers is a folder or s3://BUCKET/PREFIX, got {location!r}"
            raise CommandError(message, exit_code=2)
        if os.path.exists(location) and not os.path.isdir(location):
            raise CommandError(f"{location} is not a folder", exit_code=2)
        return os.path.abspath(location)
    url = urlsplit(location)
    if not url.netloc or "@" in url.netloc:
        message = "expected s3://BUCKET/PREFIX, without credentials: those come from the variables AWS_*"
        raise CommandError(message, exit_code=2)
    if unknown := sorted(dict(parse_qsl(url.query)).keys() - _OPTIONS):
        known = ", ".join(sorted(_OPTIONS))
        raise CommandError(f"{location}: unknown parameter {unknown[0]} (known: {known})", exit_code=2)
    if (scheme := dict(parse_qsl(url.query)).get("scheme", "https")) not in ("http", "https"):
        raise CommandError(f"{location}: scheme is http or https, got {scheme!r}", exit_code=2)
    return location


def folder_of(pair: str) -> str:
    """The folder of the pair `namespace/name` or `name`."""
    return pair.replace("/", ".")


def parquet(table: pa.Table) -> bytes:
    """`table` as the bytes of a file."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    data: bytes = sink.getvalue().to_pybytes()
    return data
