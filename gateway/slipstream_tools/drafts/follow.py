"""`slipstream drafts follow`: tells when a class's draft has become worse, and trains the next one."""

from __future__ import annotations

import argparse
import sys
import time

from slipstream_core.drift import Answer, Drift, DriftDetector
from slipstream_core.errors import CommandError
from slipstream_gateway.capture.store import CaptureStore

from slipstream_tools.drafts import training
from slipstream_tools.drafts.continual_training import ContinualTraining
from slipstream_tools.drafts.events import DRIFT, NOT_TRAINED, Event, Events, locked
from slipstream_tools.drafts.new_answers import NewAnswers
from slipstream_tools.drafts.selection import Selection

_SPECULATIVE = "speculative"


def check_options(args: argparse.Namespace) -> None:
    """Raises `CommandError` if an option is missing."""
    if args.pair is None:
        raise CommandError("give --pair NAME.", exit_code=2)
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
                raise  # the reader of the events has ended
            except OSError as exc:
                if args.once:
                    raise
                print(f"{args.store}: {exc.strerror or exc}", file=sys.stderr, flush=True)
            if args.once:
                return
            time.sleep(args.interval)


class _Follower:
    def __init__(self, store: CaptureStore, args: argparse.Namespace) -> None:
        self._args = args
        self._events = Events(args.output, args.pair)
        self._detector = DriftDetector(self._events.drifts())
        self._answers = NewAnswers(store, Selection.of(args))
        self._training = ContinualTraining(store, args, self._events, self._answers) if args.train else None

    def look(self) -> None:
        """Judge the new answers, and train what is due."""
        for row in self._answers.rows():
            if row["arm"] != _SPECULATIVE or not row["steps"] or not row["output_tokens"] or not row["drafted"]:
                continue
            answer = Answer(row["time"], row["output_tokens"], row["steps"], row["drafted"], row["accepted"])
            drift = self._detector.add(row["request_class"], answer)
            if drift is not None:
                self._report(drift)
        if self._training is not None:
            self._training.run()

    def _report(self, drift: Drift) -> None:
        """Write the event of `drift`. If a training of the class is pending, it still gets all answers since the first
        drift."""
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
