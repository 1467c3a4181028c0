"""`slipstream drafts follow`: tells when a class's draft has become worse, and trains the next one."""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slipstream_core.errors import CommandError
from slipstream_gateway.capture.store import CaptureStore

from slipstream_tools.drafts import training
from slipstream_tools.drafts.drift import Answer, Drift, DriftDetector
from slipstream_tools.drafts.events import DRIFT, NOT_BETTER, NOT_TRAINED, TRAINED, Event, Events, make_folder
from slipstream_tools.drafts.record import user
from slipstream_tools.drafts.selection import Selection

_COLUMNS = ("request_class", "time", "arm", "output_tokens", "drafted", "accepted", "steps")
_SPECULATIVE = "speculative"
_FOLDER = re.compile(r"[a-z0-9-]+-\d{8}t\d{6}-\d+")
_LATE = datetime.timedelta(minutes=10)
"""Files of several gateways come in any order; rows older than this are of a file that `forget` has written anew."""


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
    make_folder(args.output)
    follower = _Follower(store, args)
    while True:
        try:
            follower.look()
        except OSError as exc:
            if args.once:
                raise
            print(f"{args.store}: {exc.strerror or exc}", file=sys.stderr)
        if args.once:
            return
        time.sleep(args.interval)


class _Follower:
    def __init__(self, store: CaptureStore, args: argparse.Namespace) -> None:
        self._store, self._args = store, args
        self._events = Events(args.output)
        self._detector = DriftDetector(self._events.known())
        self._read: set[str] = set()
        self._latest: datetime.datetime | None = None

    def look(self) -> None:
        """Judge the new answers, and train what is due."""
        for row in self._new_rows():
            if row["arm"] != _SPECULATIVE or not row["steps"] or not row["output_tokens"]:
                continue
            answer = Answer(row["time"], row["output_tokens"], row["steps"], row["drafted"], row["accepted"])
            drift = self._detector.add(row["request_class"], answer)
            if drift is not None:
                self._tell(drift)
        if self._args.train:
            for event in [event for event in self._events.last().values() if event["event"] in (DRIFT, TRAINED)]:
                self._train_if_due(event)

    def _tell(self, drift: Drift) -> None:
        """A class that becomes worse again before its training is trained on all answers since the first time."""
        last = self._events.last().get(drift.request_class)
        since = last["since"] if last is not None and last["event"] == DRIFT else drift.since.isoformat()
        rates = {"tokens_per_step": round(drift.after, 2), "before": round(drift.before, 2)}
        self._events.add(DRIFT, drift.request_class, drift.time, since=since, **rates)

    def _new_rows(self) -> Iterator[dict[str, Any]]:
        """The rows that came since the last look, day after day, each by their times."""
        selected = Selection.of(self._args)
        files = [file for file in self._store.files(self._args.pair) if file.path not in self._read]
        oldest = None if self._latest is None else self._latest - _LATE
        for date, of_day in itertools.groupby(files, key=lambda file: file.date):
            rows: list[dict[str, Any]] = []
            for file in of_day if selected.since is None or date >= selected.since else ():
                try:
                    rows += selected.of_file(self._store, file, _COLUMNS).to_pylist()
                    self._read.add(file.path)
                except OSError as exc:  # a damaged file, or one that is gone by now, does not hide the others
                    print(f"{file.path}: {exc.strerror or exc}", file=sys.stderr)
            rows = sorted((row for row in rows if oldest is None or row["time"] > oldest), key=lambda row: row["time"])
            if rows:
                self._latest = rows[-1]["time"] if self._latest is None else max(self._latest, rows[-1]["time"])
            yield from rows

    def _train_if_due(self, event: Event) -> None:
        """After a drift, train when there are enough answers; after a training, when there are twice as many."""
        since = datetime.datetime.fromisoformat(event["since"])
        selection = Selection(self._args.pair, event["class"], since.date(), since)
        tables = selection.tables(self._store, ("request_class", "time", "token_ids"))
        count = sum(table.num_rows - table.column("token_ids").null_count for table in tables)
        start = {} if event["event"] == DRIFT else {"draft": str(self._args.output / event["draft"]), "new": None}
        needed = self._args.answers if event["event"] == DRIFT else 2 * event["answers"]
        if count >= needed and ("draft" not in start or Path(start["draft"] or "").is_dir()):
            self._train(event, selection, {**start, "output": self._args.output / self._folder_name(event)})

    def _train(self, event: Event, selection: Selection, changes: Mapping[str, Any]) -> None:
        request_class, since, folder = event["class"], event["since"], changes["output"]
        now = self._latest or datetime.datetime.now(datetime.UTC)
        chosen = {"pair": selection.pair, "request_class": request_class, "since": since}
        self._store.note("train", user=user(), output=str(folder), **chosen)
        options = argparse.Namespace(**{**vars(self._args), **changes})
        try:
            training.check_one_target(self._store, selection, options)
            training.train_llama(self._store, selection, options, beside_serving=True)
        except CommandError as exc:
            self._events.add(NOT_TRAINED, request_class, now, reason=str(exc))
            return
        record = json.loads((folder / "training.json").read_text(encoding="utf-8"))
        rates = {name: record[name] for name in ("tokens_per_step", "tokens_per_step_before")}
        if rates["tokens_per_step"] <= rates["tokens_per_step_before"]:
            shutil.rmtree(folder)
            self._events.add(NOT_BETTER, request_class, now, **rates)
            return
        for earlier in self._events.drafts(request_class)[:-1]:  # the last one stays until the engine has compared both
            if _FOLDER.fullmatch(earlier):
                shutil.rmtree(self._args.output / earlier, ignore_errors=True)
        answers = record["answers"] + record["held_out_answers"]
        facts = {"since": since, "answers": answers, "draft": folder.name, "sha256": record["sha256"], **rates}
        self._events.add(TRAINED, request_class, now, **facts)

    def _folder_name(self, event: Event) -> str:
        """The same after a restart, so that an interrupted training resumes."""
        began, number = datetime.datetime.fromisoformat(event["since"]), len(self._events.drafts(event["class"])) + 1
        return f"{re.sub('[^a-z0-9]+', '-', event['class'].lower())}-{began:%Y%m%dt%H%M%S}-{number}"
