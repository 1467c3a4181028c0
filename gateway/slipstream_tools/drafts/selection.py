"""The captured answers that the options of a command select."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc
from slipstream_core.errors import CommandError
from slipstream_gateway.capture.store import CaptureStore, StoredFile


class Selection(NamedTuple):
    """Answers of a pair, of a class (`task` or `task/length`), since a day or a time, of a target, in certain files;
    None: of all."""

    pair: str | None
    request_class: str | None
    since: datetime.date | None
    since_time: datetime.datetime | None = None
    target: str | None = None
    paths: AbstractSet[str] | None = None

    @classmethod
    def of(cls, args: argparse.Namespace) -> Self:
        return cls(args.pair, args.request_class, args.since)

    def tables(self, store: CaptureStore, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The rows, file after file. `columns` must have `request_class`; `time` for a `since_time`; `target` for a
        target."""
        for file in self.files(store):
            yield self.of_file(store, file, columns)

    def files(self, store: CaptureStore) -> Iterator[StoredFile]:
        """The files that may have such rows."""
        for file in store.files(self.pair):
            if (self.since is None or file.date >= self.since) and (self.paths is None or file.path in self.paths):
                yield file

    def of_file(self, store: CaptureStore, file: StoredFile, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of one file."""
        table = store.read(file, columns)
        if self.request_class is not None:
            names = table.column("request_class").to_pylist()
            table = table.filter(pa.array([self._is_of_class(name) for name in names], pa.bool_()))
        if self.since_time is not None:  # Arrow compares times of one zone only
            table = table.filter(
                pc.field("time") >= self.since_time.astimezone(datetime.UTC)
            )  # Arrow compares one zone
        if self.target is not None:
            table = table.filter(pc.field("target") == self.target)
        return table

    def _is_of_class(self, name: str) -> bool:
        return self.request_class in (name, name.partition("/")[0])


def nothing_found(args: argparse.Namespace) -> CommandError:
    """The error for a selection without answers."""
    options = {"pair": "pair", "class": "request_class", "since": "since"}
    chosen = {option: getattr(args, name, None) for option, name in options.items()}
    selected = ", ".join(f"--{option} {value}" for option, value in chosen.items() if value is not None)
    return CommandError(f"{args.store} has no captured answers{f' for {selected}' if selected else ''}.")
