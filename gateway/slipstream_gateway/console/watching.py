"""The director's observer with the console's recorder beside it."""

from __future__ import annotations

from slipstream_gateway.console.recorder import Recorder
from slipstream_gateway.request.outcome import Observer, Outcome


class Watching:
    """Hands everything on to `observer`, and outcomes to the recorder as well."""

    def __init__(self, observer: Observer, recorder: Recorder) -> None:
        self._record = observer.record
        self._record_here = recorder.record
        self.span = observer.span
        self.rejected = observer.rejected
        self.upstream_failed = observer.upstream_failed

    def record(self, outcome: Outcome) -> None:
        self._record(outcome)
        self._record_here(outcome)
