"""Tells when the draft of a class has become worse than before, which is a reason to train another one."""

from __future__ import annotations

import datetime

from slipstream_core.drift import WINDOW, Answer, Drift, DriftDetector
from slipstream_core.observation import Observation
from slipstream_core.types import Arm

from slipstream_operator.rollout.analysis.outcomes import kind_of
from slipstream_operator.status.conditions import rfc3339
from slipstream_operator.types import Note

DRAFT_DRIFT = "DraftDrift"


class DriftWatch:
    """The drift of a pair's classes, from the outcomes of their speculative answers. A new revision's do not count."""

    def __init__(self) -> None:
        self._detector = DriftDetector({})
        self._notes: list[Note] = []

    def record(self, seen: Observation) -> None:
        """Record an outcome; others than those of speculative answers are ignored."""
        if kind_of(seen) is None or seen.status != "ok" or seen.arm is not Arm.SPECULATIVE or seen.canary:
            return
        if seen.steps <= 0 or not seen.drafted:
            return
        time = datetime.datetime.fromtimestamp(seen.time_s, datetime.UTC)
        answer = Answer(time, seen.output_tokens, seen.steps, seen.drafted, seen.accepted)
        if (drift := self._detector.add(seen.request_class, answer)) is not None:
            self._notes.append(_note(drift))

    def take(self) -> tuple[Note, ...]:
        """The notes since the last call."""
        taken, self._notes = tuple(self._notes), []
        return taken


def _note(drift: Drift) -> Note:
    # The text depends on the outcomes alone: outcomes that are read again give the same Event.
    return Note(
        type="Warning",
        reason=DRAFT_DRIFT,
        message=f"{drift.request_class}: {drift.after:.2f} tokens per step in the {WINDOW} speculative answers from "
        f"{rfc3339(drift.since)} on, {drift.before:.2f} before; a draft can be trained on captured answers since then",
    )
