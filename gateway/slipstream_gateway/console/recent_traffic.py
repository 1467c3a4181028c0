"""The results of this gateway's requests over the last minutes, stored at minimal cost per request.

A finished request appends its outcome. At intervals, and on each read, the outcomes are counted into time buckets, of
which the newest are kept.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from slipstream_gateway.console import ddsketch
from slipstream_gateway.request.causes import CLIENT_ERRORS
from slipstream_gateway.request.observations import rejections
from slipstream_gateway.request.outcome import Outcome, Recorder

BUCKET_S = 15
BUCKETS = 60
_SETTLE_AFTER = 64
# Pairs and classes come from the manifest and a closed set, which bounds the cells; this is for the worst case.
_MAX_CELLS = 4096

CellKey = tuple[str, str, str]


class Cell:
    """The sums of one pair, class and arm over some time. `rejected` counts steps that rejected a draft token, so that
    accepted / (accepted + rejected) is the probability β that break-evens use. `refused` counts the client's own
    errors, which are not among the `failed`."""

    __slots__ = ("accepted", "drafted", "failed", "output_tokens", "prompt_tokens", "refused", "rejected", "requests")

    def __init__(self) -> None:
        self.requests = self.failed = self.refused = self.prompt_tokens = self.output_tokens = 0
        self.drafted = self.accepted = self.rejected = 0

    def add(self, seen: Outcome) -> None:
        usage = seen.usage
        self.requests += 1
        if seen.status != "ok":
            is_refused = seen.status in CLIENT_ERRORS
            self.refused += is_refused
            self.failed += not is_refused and seen.status != "cancelled"
            return
        self.prompt_tokens += usage.prompt_tokens
        self.output_tokens += usage.output_tokens
        self.drafted += usage.drafted
        self.accepted += usage.accepted
        self.rejected += rejections(usage, seen.decision.draft_length) if usage.drafted else 0


class Bucket:
    """Some seconds of traffic, from `number` · `BUCKET_S` on."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.cells: dict[CellKey, Cell] = {}
        self.reasons: dict[tuple[str, str], int] = {}
        self.resumed: dict[tuple[str, str], int] = {}
        self.times: dict[CellKey, ddsketch.Bins] = {}

    def add(self, seen: Outcome) -> None:
        key = (seen.pair, seen.decision.request_class, seen.decision.arm.value)
        cell = self.cells.get(key)
        if cell is None:
            if len(self.cells) >= _MAX_CELLS:
                return
            cell = self.cells[key] = Cell()
        cell.add(seen)
        reason = (seen.pair, seen.decision.reason.value)
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        for cause in seen.resumed:
            self.resumed[seen.pair, cause] = self.resumed.get((seen.pair, cause), 0) + 1
        if seen.status == "ok":
            self._add_time(seen, "e2e", seen.e2e_s)
            self._add_time(seen, "ttft", seen.ttft_s)
            self._add_time(seen, "tpot", seen.tpot_s)

    def _add_time(self, seen: Outcome, measure: str, seconds: float | None) -> None:
        if seconds is not None:
            ddsketch.add(self.times.setdefault((seen.pair, seen.decision.arm.value, measure), {}), seconds)


class RecentTraffic(Recorder):
    """Takes every outcome. Not thread-safe: it lives on one event loop."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._new: list[tuple[float, Outcome]] = []
        self._buckets: deque[Bucket] = deque(maxlen=BUCKETS)
        self.totals: dict[CellKey, int] = {}
        self.started_s = clock()

    def record(self, outcome: Outcome) -> None:
        self._new.append((self._clock(), outcome))
        if len(self._new) >= _SETTLE_AFTER:
            self._settle()

    def buckets(self) -> tuple[int, list[Bucket]]:
        """The number of the present bucket, and the buckets within the window, oldest first."""
        self._settle()
        now = int(self._clock() // BUCKET_S)
        return now, [bucket for bucket in self._buckets if bucket.number > now - BUCKETS]

    def _settle(self) -> None:
        new, self._new = self._new, []
        for time_s, seen in new:
            self._bucket(int(time_s // BUCKET_S)).add(seen)
            key = (seen.pair, seen.decision.request_class, seen.decision.arm.value)
            if key in self.totals or len(self.totals) < _MAX_CELLS:
                self.totals[key] = self.totals.get(key, 0) + 1

    def _bucket(self, number: int) -> Bucket:
        """If the clock is set back, the newest bucket continues."""
        if not self._buckets or number > self._buckets[-1].number:
            self._buckets.append(Bucket(number))
        return self._buckets[-1]
