"""Read positions in the streams of outcomes, so that every outcome of another replica is applied once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import msgspec

from slipstream_core.observation import Observation
from slipstream_core.redis.outcome_stream import decode


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """A place in the stream of one pair.

    `entry` is the id of the entry read last, `numbers` the number of the last outcome per recently active origin
    (gateway process). The entry saves reading. The numbers identify new outcomes when the stream is read again from its
    beginning, because Redis was restored with older data.
    """

    entry: str
    numbers: Mapping[str, int]


def is_before(entry: bytes, other: bytes) -> bool:
    """Whether a stream entry's id, `milliseconds-number`, precedes another's; False if one is malformed."""
    first, second = entry.split(b"-"), other.split(b"-")
    if not all(len(parts) == 2 and parts[0].isdigit() and parts[1].isdigit() for parts in (first, second)):
        return False
    return (int(first[0]), int(first[1])) < (int(second[0]), int(second[1]))


_START = b"0-0"
# One for each pair and gateway process that ever wrote; the oldest are dropped first.
_MOST_MARKS = 20_000
# The origins of a pair that were active last; more gateway processes at once would need longer positions.
_MOST_NUMBERS = 128


class Inbox:
    """Positions in the streams, and per pair and origin the number of the last outcome that was applied.

    Positions only save reading: after a stream is read again from its beginning, the numbers identify new outcomes.
    """

    def __init__(self) -> None:
        self._positions: dict[str, bytes] = {}
        self._resumed: dict[str, bytes] = {}
        self._marks: OrderedDict[tuple[str, bytes], int] = OrderedDict()
        self._origins: dict[str, dict[bytes, None]] = {}  # of each pair, by time of activity
        self.received = 0
        self.duplicates = 0
        self.skipped = 0
        self.missed = 0
        self.rewound = 0

    def positions(self, pairs: Sequence[str]) -> list[bytes]:
        """The id read last, for each of `pairs`; others are dropped."""
        known = {**self._positions, **self._resumed}
        self._resumed.clear()
        self._positions = {pair: known.get(pair, _START) for pair in pairs}
        return list(self._positions.values())

    def resume(self, pair: str, position: Position) -> None:
        """Continues from `position` instead of the last position of `pair`."""
        self._resumed[pair] = position.entry.encode()
        for origin in self._origins.pop(pair, ()):
            del self._marks[pair, origin]
        for name, number in position.numbers.items():
            self._mark(pair, name.encode(), number)

    def is_resumed(self, pair: str) -> bool:
        """Whether `pair` was resumed elsewhere since its last read request."""
        return pair in self._resumed

    def position(self, pair: str) -> Position:
        """The read position of `pair`, including the numbers of outcomes that were opened since it was last passed."""
        origins = list(self._origins.get(pair, ()))[-_MOST_NUMBERS:]
        numbers = {origin.decode("ascii", "replace"): self._marks[pair, origin] for origin in origins}
        return Position(entry=self._positions.get(pair, _START).decode("ascii", "replace"), numbers=numbers)

    def passed(self, pair: str, position: bytes, skipped: int) -> bool:
        """Marks the stream of `pair` as read up to `position`; `skipped` entries did not have our format. Returns
        whether the position advanced."""
        self.skipped += skipped
        before = self._positions.get(pair, _START)
        if position == before:
            return False
        self.rewound += is_before(position, before)
        self._positions[pair] = position
        return True

    def open(self, pair: str, origin: bytes, number: bytes, payload: bytes) -> list[Observation]:
        """The outcomes of a batch; none if it was read before or is malformed."""
        first = int(number) if number.isdigit() else 0
        if first < 1:
            self.skipped += 1
            return []
        last = self._marks.get((pair, origin))
        if last is not None and first <= last:
            self.duplicates += 1
            return []
        observations = decode(payload, pair=pair)
        if observations is None:
            self.skipped += 1
            return []
        if last is not None:
            self.missed += first - last - 1
        self._mark(pair, origin, first + len(observations) - 1)
        self.received += len(observations)
        return observations

    def _mark(self, pair: str, origin: bytes, last: int) -> None:
        self._marks[pair, origin] = last
        self._marks.move_to_end((pair, origin))
        origins = self._origins.setdefault(pair, {})
        origins.pop(origin, None)
        origins[origin] = None
        if len(self._marks) > _MOST_MARKS:
            (oldest, gone), _ = self._marks.popitem(last=False)
            del self._origins[oldest][gone]
            if not self._origins[oldest]:
                del self._origins[oldest]
