"""Trains drafts for classes whose draft has become worse, as far as `slipstream drafts follow` may."""

from __future__ import annotations

import argparse
import math
import re
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from slipstream_core.environment import user
from slipstream_core.errors import CommandError
from slipstream_gateway.capture.store import CaptureStore

from slipstream_tools.drafts import training
from slipstream_tools.drafts.events import DRIFT, NOT_BETTER, NOT_TRAINED, TRAINED, Event, Events
from slipstream_tools.drafts.new_answers import NewAnswers
from slipstream_tools.drafts.selection import Selection

_RECORD, _WORK = "training.json", ".training"
_FOLDER = re.compile(r"[a-z0-9-]+-\d{8}t\d{6}-\d+")


class ContinualTraining:
    """The trainings of the classes in `events`, on the answers in `store` that `answers` has read."""

    def __init__(self, store: CaptureStore, args: argparse.Namespace, events: Events, answers: NewAnswers) -> None:
        self._store, self._args, self._events, self._answers = store, args, events, answers
        self._counts: dict[tuple[str, Selection], int] = {}

    def run(self) -> None:
        """Train what is due."""
        for event in self._events.last().values():
            count = self._count(self._selection(event))
            if count and count >= self._needed(event):
                self._train_from(event, count)

    def _needed(self, event: Event) -> int:
        """The number of answers for the next training of a class, after `event`."""
        if event.event == DRIFT:
            return int(self._args.answers)
        return math.ceil(1.1 * event.answers) if event.event == NOT_TRAINED else 2 * event.answers

    def _selection(self, event: Event) -> Selection:
        """The answers to train on: those since the drift, of the present target."""
        answers = self._answers
        since = event.since.date()
        paths = frozenset(answers.read)
        return Selection(self._args.pair, event.request_class, since, event.since, answers.target, paths)

    def _count(self, selection: Selection) -> int:
        """The number of selected answers with token ids. Files never change, so that each one is read once."""
        total, columns = 0, ("request_class", "time", "target", "token_ids")
        for file in selection.files(self._store):
            key = (file.path, selection._replace(paths=None))
            if key not in self._counts:
                ids = selection.of_file(self._store, file, columns).column("token_ids")
                self._counts[key] = len(ids) - ids.null_count
            total += self._counts[key]
        return total

    def _train_from(self, event: Event, count: int) -> None:
        """Train from the class's last draft, if it has one. Nothing happens if a person has deleted that draft."""
        start = self._args.output / event.draft
        if not event.draft:
            self._train(event, count, {})
        elif start.is_dir():
            self._train(event, count, {"draft": str(start), "new": None})

    def _train(self, event: Event, count: int, start: Mapping[str, Any]) -> None:
        """Train in a folder whose name begins with a dot, which engines ignore, and rename it if the draft is better. A
        finished training of an earlier run is not repeated."""
        name = self._folder_name(event)
        folder, work = self._args.output / name, self._args.output / f".{name}"
        new_event = partial(
            Event,
            pair=event.pair,
            request_class=event.request_class,
            time=max(self._answers.latest or event.time, event.time),
            since=event.since,
            answers=count,
        )
        if not folder.is_dir() and not _is_finished(work):
            try:
                self._run_training(event, work, start)
            except (CommandError, OSError) as exc:
                shutil.rmtree(work, ignore_errors=True)  # a training with other options could not resume it
                self._events.add(new_event(event=NOT_TRAINED, draft=event.draft, reason=str(exc)))
                return
        if folder.is_dir():
            self._accept(folder, new_event)
        elif _is_better(work):
            self._accept(work.replace(folder), new_event)
        else:
            self._reject(work, partial(new_event, draft=event.draft))

    def _run_training(self, event: Event, work: Path, start: Mapping[str, Any]) -> None:
        if not (work / _WORK).is_dir():
            shutil.rmtree(work, ignore_errors=True)  # what is there can be neither used nor resumed
        chosen = {"pair": event.pair, "request_class": event.request_class, "since": event.since.isoformat()}
        self._store.note("train", user=user(), output=str(work), **chosen)
        options = argparse.Namespace(**{**vars(self._args), **start, "output": work})
        selection = self._selection(event)
        training.check_one_target(self._store, selection, options)
        training.train_llama(self._store, selection, options, beside_serving=True)

    def _reject(self, work: Path, new_event: Callable[..., Event]) -> None:
        record = _record(work)
        self._events.add(new_event(event=NOT_BETTER, tokens_per_step=record.tokens_per_step, before=record.before))
        shutil.rmtree(work)

    def _accept(self, folder: Path, new_event: Callable[..., Event]) -> None:
        """Keep the draft, and the one before it, so that the engine can compare both. Delete older drafts of the
        class."""
        record = _record(folder)
        rates = {"tokens_per_step": record.tokens_per_step, "before": record.before}
        event = new_event(event=TRAINED, draft=folder.name, sha256=record.sha256, **rates)
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
    """What a training has written about its draft. `before` is the rate of the draft that it started from."""

    sha256: str
    tokens_per_step: float
    before: float = msgspec.field(name="tokens_per_step_before")


def _record(folder: Path) -> _Record:
    return msgspec.json.decode((folder / _RECORD).read_bytes(), type=_Record)


def _is_finished(folder: Path) -> bool:
    return (folder / _RECORD).exists() and not (folder / _WORK).exists()


def _is_better(folder: Path) -> bool:
    record = _record(folder)
    return record.tokens_per_step > record.before
