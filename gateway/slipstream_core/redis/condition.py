"""The state of a store: its connection to the server, logged on changes, with the waits between attempts; and its
counters, for the metrics."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

import msgspec

_log = logging.getLogger(__name__)
_SETTLED_S = 2.0


class Backoff:
    """Waits that double up to `most_s`, each with random jitter to 50–100 % so that replicas do not return at once."""

    def __init__(self, *, first_s: float, most_s: float) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self.failures = 0

    def next_s(self) -> float:
        """Counts a failure; returns the wait after it."""
        wait_s = min(self._first_s * 2.0 ** min(self.failures, 16), self._most_s)
        self.failures += 1
        return wait_s * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        self.failures = 0


class Condition:
    """Logs one line when the server starts to fail, when the kind of failure changes, and when it recovers.

    `what` is the shared data, and `meanwhile` the behaviour of its user without it. Recovery means two seconds without
    a failure, so that an unstable server does not fill the log.
    """

    def __init__(self, server: str, *, meanwhile: str, clock: Callable[[], float], what: str = "outcomes") -> None:
        self._server = server
        self._what = what
        self._meanwhile = meanwhile
        self._clock = clock
        self._kind: str | None = "not connected yet"
        self._working_since_s: float | None = None

    def failed(self, kind: str, message: str) -> None:
        """Failures of the same `kind` are logged once; `message` contains no credential."""
        self._working_since_s = None
        if kind != self._kind:
            self._kind = kind
            _log.warning("%s are not shared through %s: %s; %s", self._what, self._server, message, self._meanwhile)

    def worked(self) -> None:
        if self._kind is None:
            return
        now_s = self._clock()
        if self._working_since_s is None:
            self._working_since_s = now_s
        if now_s - self._working_since_s >= _SETTLED_S:
            self._kind = None
            _log.info("%s are shared through %s", self._what, self._server)


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The present state of a store, and its counters since the start; counts are of outcomes unless stated otherwise.

    `connected`: the last exchange succeeded. `buffered`: not yet acknowledged by the server. `dropped`: by a full
    buffer. `stored`: acknowledged. `received`: of other replicas, applied. `missed`: of other replicas, removed from
    the stream before they were read. `duplicates`: batches that were read again and not applied. `skipped`: entries
    that were not batches of ours. `rewound`: number of times that a stream had been replaced and was read from its
    beginning, because Redis was restored without it.
    """

    connected: bool = True
    buffered: int = 0
    dropped: int = 0
    stored: int = 0
    received: int = 0
    missed: int = 0
    duplicates: int = 0
    skipped: int = 0
    rewound: int = 0
