"""Outcomes of this gateway that Redis has not acknowledged: bounded, and per pair in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from slipstream_core.observation import Observation
from slipstream_core.redis.condition import Backoff
from slipstream_core.redis.outcome_stream import BATCH, Frame, encode

# Per pair and exchange: 1,024 outcomes, some 0.5 MB.
_FRAMES_AT_ONCE = 64
_FIRST_BACKOFF_S = 0.5
_MOST_BACKOFF_S = 10.0


class _Lane:
    """The outcomes of one pair. `sending` may already be in Redis, so each batch is resent unchanged until it is
    acknowledged; `fresh` was never sent."""

    def __init__(self) -> None:
        self.fresh: deque[Observation] = deque()
        self.sending: deque[Frame] = deque()
        self.backoff = Backoff(first_s=_FIRST_BACKOFF_S, most_s=_MOST_BACKOFF_S)
        self.next_number = 1
        self.due_s = 0.0


class Outbox:
    """Holds at most `limit` outcomes; when full it drops the oldest of the pair with the most outcomes."""

    def __init__(self, *, limit: int, clock: Callable[[], float]) -> None:
        self._limit = limit
        self._clock = clock
        self._lanes: dict[str, _Lane] = {}
        self.buffered = 0
        self.dropped = 0
        self.acknowledged = 0

    @property
    def refused(self) -> bool:
        """Whether Redis refused the outcomes of any pair in the last exchange."""
        return any(lane.backoff.failures for lane in self._lanes.values())

    @property
    def behind(self) -> bool:
        """Whether there is more to send than fits into one exchange."""
        now_s = self._clock()
        full = BATCH * _FRAMES_AT_ONCE
        return any(len(lane.fresh) >= full and now_s >= lane.due_s for lane in self._lanes.values())

    def append(self, observation: Observation) -> None:
        """Takes microseconds in any state."""
        lane = self._lanes.get(observation.subject.pair)
        if lane is None:
            lane = self._lanes[observation.subject.pair] = _Lane()
        if self.buffered >= self._limit and not self._make_room():
            self.dropped += 1
            return
        lane.fresh.append(observation)
        self.buffered += 1

    def due(self) -> list[tuple[str, list[Frame]]]:
        """The batches to send now, by pair. After a refusal a pair sends a single batch as a test."""
        now_s = self._clock()
        due = []
        for pair, lane in self._lanes.items():
            if now_s < lane.due_s:
                continue
            most = 1 if lane.backoff.failures else _FRAMES_AT_ONCE
            self._fill(lane, most)
            if lane.sending:
                due.append((pair, [lane.sending[i] for i in range(min(most, len(lane.sending)))]))
        return due

    def stored(self, pair: str, frames: int, *, refused: bool) -> None:
        """The first `frames` batches of `pair` are in Redis; `refused`: Redis refused the next one, which is resent
        later."""
        lane = self._lanes[pair]
        for _ in range(frames):
            count = lane.sending.popleft().outcomes
            self.buffered -= count
            self.acknowledged += count
        if refused:
            lane.due_s = self._clock() + lane.backoff.next_s()
        else:
            lane.backoff.reset()

    def _fill(self, lane: _Lane, frames: int) -> None:
        while lane.fresh and len(lane.sending) < frames:
            batch = [lane.fresh.popleft() for _ in range(min(BATCH, len(lane.fresh)))]
            frame = encode(batch, first=lane.next_number)
            if frame is None:
                self.dropped += len(batch)
                self.buffered -= len(batch)
                continue
            lane.next_number += frame.outcomes
            lane.sending.append(frame)

    def _make_room(self) -> bool:
        """Drops several outcomes at once, so that the search for the fullest pair costs little per outcome."""
        fullest = max(self._lanes.values(), key=lambda lane: len(lane.fresh)).fresh
        count = min(BATCH, len(fullest))
        for _ in range(count):
            fullest.popleft()
        self.buffered -= count
        self.dropped += count
        return count > 0
