"""Which pairs clients ask for. A rename or a deletion of such a pair is announced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

LATELY_S = 60.0


class PairUse:
    """The requests that run and the time of the last one, by the pair's key. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._running: Counter[str] = Counter()
        self._seen_s: dict[str, float] = {}

    def begin(self, pair: str) -> None:
        self._running[pair] += 1

    def end(self, pair: str) -> None:
        self._running[pair] -= 1
        if not self._running[pair]:
            del self._running[pair]
        self._seen_s[pair] = self._clock()

    def running(self, pair: str) -> int:
        """The requests for the pair that have no end yet."""
        return self._running[pair]

    def lately(self) -> frozenset[str]:
        """The pairs with a request that runs, or that ended within `LATELY_S`."""
        since_s = self._clock() - LATELY_S
        self._seen_s = {pair: seen_s for pair, seen_s in self._seen_s.items() if seen_s >= since_s}
        return frozenset(self._running) | frozenset(self._seen_s)
