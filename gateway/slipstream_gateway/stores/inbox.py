"""What was read of each stream, so that every outcome of another replica is applied once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from slipstream_gateway.measurement import Observation
from slipstream_gateway.stores.wire import decode

_START = b"0-0"
# One for each pair and gateway process that ever wrote: those of gateways that are long gone leave first.
_MOST_MARKS = 20_000


class Inbox:
    """Positions in the streams, and per pair and origin the number of the last outcome that was applied.

    Positions only save reading: a stream can be read again from its beginning, the numbers tell what is new.
    """

    def __init__(self) -> None:
        self._positions: dict[str, bytes] = {}
        self._marks: OrderedDict[tuple[str, bytes], int] = OrderedDict()
        self.received = 0
        self.duplicates = 0
        self.skipped = 0
        self.missed = 0

    def positions(self, pairs: Sequence[str]) -> list[bytes]:
        """The id read last, for each of `pairs`; others are forgotten."""
        self._positions = {pair: self._positions.get(pair, _START) for pair in pairs}
        return list(self._positions.values())

    def passed(self, pair: str, position: bytes, skipped: int) -> None:
        """`pair`'s stream was read up to `position`; `skipped` entries were not of our format."""
        self._positions[pair] = position
        self.skipped += skipped

    def open(self, pair: str, origin: bytes, number: bytes, payload: bytes) -> list[Observation]:
        """The outcomes of a batch; none where it was seen before or cannot be read."""
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
        if len(self._marks) > _MOST_MARKS:
            self._marks.popitem(last=False)
