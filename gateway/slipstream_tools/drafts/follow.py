"""`slipstream drafts follow`: tells when a class's draft has become worse, and trains the next one."""

from __future__ import annotations

import argparse
import datetime
import itertools
import math
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from slipstream_core.errors import CommandError
from slipstream_gateway.capture.store import CaptureStore, StoredFile

from slipstream_tools.drafts import training
from slipstream_tools.drafts.drift import Answer, Drift, DriftDetector
from slipstream_tools.drafts.events import DRIFT, NOT_BETTER, NOT_TRAINED, TRAINED, Event, Events, locked
from slipstream_tools.drafts.record import user
from slipstream_tools.drafts.selection import Selection

_COLUMNS = ("request_class", "time", "target", "arm", "output_tokens", "drafted", "accepted", "steps")
_SPECULATIVE, _RECORD = "speculative", "training.json"
_FOLDER = re.compile(r"[a-z0-9-]+-\d{8}t\d{6}-\d+")
_LATE = datetime.timedelta(minutes=10)
"""Files of several gateways come in any order. Rows that are later than this are left out: most are those of a file
that `forget` has written anew."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FOLDER", help="events, and drafts: the pair's draft.candidates"
    )
    parser.add_argument("--train", action="store_true", help="train a draft for a class whose draft has become worse")
    training.add_options(parser, "with --train: ")
    parser.add_argument(
        "--answers", type=_count, default=2000, metavar="N", help="train when there are so many (default: 2000)"
    )
    parser.add_argument(
        "--interval", type=_count, default=30, metavar="S", help="seconds between two looks (default: 30)"
    )
    parser.add_argument("--once", action="store_true", help="look once, and end")


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 to 1000000, got {text!r}")
    return int(text)


def check_options(args: argparse.Namespace) -> None:
    """Raises `CommandError` if an option is missing."""
    if args.pair is None:
        raise CommandError("give --pair NAME: drafts of other pairs are others.", exit_code=2)
    if args.train:
        if args.target is None:
            raise CommandError("--train needs --target FOLDER.", exit_code=2)
        training.check_start(args)


def follow(store: CaptureStore, args: argparse.Namespace) -> None:
    """Look at the store until the process is stopped. An unreachable store is looked at again."""
    with locked(args.output):
        follower = _Follower(store, args)
        while True:
            try:
                follower.look()
            except BrokenPipeError:
                raise  # nobody reads the events any more
            except OSError as exc:
                if args.once:
                    raise
                print(f"{args.store}: {exc.strerror or exc}", file=sys.stderr, flush=True)
            if args.once:
                return
            time.sleep(args.interval)


class _Follower:
    def __init__(self, store: CaptureStore, args: argparse.Namespace) -> None:
        self._store, self._args = store, args
        self._events = Events(args.output, args.pair)
        self._detector = DriftDetector(self._events.drifts())
        self._read: set[str] = set()
        self._unread: set[str] = set()
        self._latest: datetime.datetime | None = None
        self._target = ""  # of the latest answer: a draft is for one target
        self._counts: dict[tuple[str, Selection], int] = {}

    def look(self) -> None:
        """Judge the new answers, and train what is due."""
        for row in self._new_rows():
            self._target = row["target"]
            if row["arm"] != _SPECULATIVE or not row["steps"] or not row["output_tokens"] or not row["drafted"]:
                continue
            answer = Answer(row["time"], row["output_tokens"], row["steps"], row["drafted"], row["accepted"])
            drift = self._detector.add(row["request_class"], answer)
            if drift is not None:
                self._tell(drift)
        if self._args.train:
            for event in self._events.last().values():
                self._train_if_due(event)

    def _tell(self, drift: Drift) -> None:
        """A class that becomes worse again before its training is trained on all answers since the first time."""
        last = self._events.last().get(drift.request_class)
        self._events.add(
            Event(
                event=DRIFT,
                pair=self._args.pair,
                request_class=drift.request_class,
                time=drift.time,
                since=last.since if last is not None and last.event in (DRIFT, NOT_TRAINED) else drift.since,
                tokens_per_step=round(drift.after, 2),
                before=round(drift.before, 2),
            )
        )

    def _new_rows(self) -> Iterator[dict[str, Any]]:
        """The rows that came since the last look, day after day, each by their times."""
        selected = Selection.of(self._args)
        files = [file for file in self._store.files(self._args.pair) if file.path not in self._read]
        oldest = None if self._latest is None else self._latest - _LATE
        for date, of_day in itertools.groupby(files, key=lambda file: file.date):
            rows: list[dict[str, Any]] = []
            for file in of_day if selected.since is None or date >= selected.since else ():
                found = self._rows_of(selected, file)
                is_late = file.path in self._unread
                rows += [row for row in found if is_late or oldest is None or row["time"] > oldest]
            rows.sort(key=lambda row: row["time"])
            if rows:  # the clock of a gateway may be ahead
                latest = min(rows[-1]["time"], datetime.datetime.now(datetime.UTC))
                self._latest = latest if self._latest is None else max(self._latest, latest)
            yield from rows

    def _rows_of(self, selected: Selection, file: StoredFile) -> list[dict[str, Any]]:
        """The rows of a file; none if it cannot be read now. A damaged file does not hide the others."""
        try:
            rows: list[dict[str, Any]] = selected.of_file(self._store, file, _COLUMNS).to_pylist()
        except OSError as exc:
            if file.path not in self._unread:
                print(f"{file.path}: {exc.strerror or exc}", file=sys.stderr, flush=True)
            self._unread.add(file.path)
            return []
        self._read.add(file.path)
        return rows

    def _train_if_due(self, event: Event) -> None:
        """After a drift, train when there are enough answers; after a training, when there are twice as many; after one
        that failed, when there are a tenth more."""
        needed = {DRIFT: self._args.answers, NOT_TRAINED: math.ceil(1.1 * event.answers)}
        count = self._count(event)
        if not count or count < needed.get(event.event, 2 * event.answers):
            return
        start = self._args.output / event.draft
        if not event.draft:
            self._train(event, count, {})
        elif start.is_dir():  # else a person has taken it away
            self._train(event, count, {"draft": str(start), "new": None})

    def _selection(self, event: Event) -> Selection:
        """The answers to train on; of the files that can be read."""
        since = event.since.date()
        return Selection(self._args.pair, event.request_class, since, event.since, self._target, frozenset(self._read))

    def _count(self, event: Event) -> int:
        """The answers of the class with token ids since the drift. Files do not change: each is read once."""
        selection, total = self._selection(event), 0
        columns = ("request_class", "time", "target", "token_ids")
        for file in selection.files(self._store):
            key = (file.path, selection._replace(paths=None))
            if key not in self._counts:
                ids = selection.of_file(self._store, file, columns).column("token_ids")
                self._counts[key] = len(ids) - ids.null_count
            total += self._counts[key]
        return total

    def _train(self, event: Event, count: int, start: Mapping[str, Any]) -> None:
        """Train in a folder whose name begins with a dot, which engines do not look at. A draft that an earlier run has
        trained, and not judged, is judged."""
        name = self._folder_name(event)
        folder, work = self._args.output / name, self._args.output / f".{name}"
        selection = self._selection(event)
        told = partial(
            Event,
            pair=event.pair,
            request_class=event.request_class,
            time=max(self._latest or event.time, event.time),
            since=event.since,
            answers=count,
        )
        if not folder.is_dir() and not _is_finished(work):
            chosen = {"pair": event.pair, "request_class": event.request_class, "since": event.since.isoformat()}
            options = argparse.Namespace(**{**vars(self._args), **start, "output": work})
            if not (work / ".training").is_dir():
                shutil.rmtree(work, ignore_errors=True)  # it is neither finished nor begun
            try:
                self._store.note("train", user=user(), output=str(folder), **chosen)
                training.check_one_target(self._store, selection, options)
                training.train_llama(self._store, selection, options, beside_serving=True)
            except (CommandError, OSError) as exc:
                shutil.rmtree(work, ignore_errors=True)  # other options could not resume it
                self._events.add(told(event=NOT_TRAINED, draft=event.draft, reason=str(exc)))
                return
        if folder.is_dir():
            self._accept(folder, told)
        elif _is_better(work):
            self._accept(work.replace(folder), told)
        else:
            self._reject(work, partial(told, draft=event.draft))

    def _reject(self, work: Path, told: Callable[..., Event]) -> None:
        record = _record(work)
        self._events.add(told(event=NOT_BETTER, tokens_per_step=record.tokens_per_step, before=record.before))
        shutil.rmtree(work)

    def _accept(self, folder: Path, told: Callable[..., Event]) -> None:
        """The last draft of the class stays until the engine has compared both."""
        record = _record(folder)
        rates = {"tokens_per_step": record.tokens_per_step, "before": record.before}
        event = told(event=TRAINED, draft=folder.name, sha256=record.sha256, **rates)
        for earlier in self._events.drafts(event.request_class)[:-1]:
            if _FOLDER.fullmatch(earlier):
                shutil.rmtree(self._args.output / earlier, ignore_errors=True)
        self._events.add(event)

    def _folder_name(self, event: Event) -> str:
        """The same after a restart, so that an interrupted training resumes."""
        slug = re.sub("[^a-z0-9]+", "-", event.request_class.lower())
        number = len(self._events.drafts(event.request_class)) + 1
        return f"{slug}-{event.since:%Y%m%dt%H%M%S}-{number}"


class _Record(msgspec.Struct, frozen=True):
    """What a training says of its draft; `before`: of the draft that it started from."""

    sha256: str
    tokens_per_step: float
    before: float = msgspec.field(name="tokens_per_step_before")


def _record(folder: Path) -> _Record:
    return msgspec.json.decode((folder / _RECORD).read_bytes(), type=_Record)


def _is_finished(folder: Path) -> bool:
    return (folder / _RECORD).exists() and not (folder / ".training").exists()


def _is_better(folder: Path) -> bool:
    record = _record(folder)
    return record.tokens_per_step > record.before
