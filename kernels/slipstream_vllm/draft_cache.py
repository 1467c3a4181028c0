"""Tracks the complete part of the draft model's KV cache, per request and per block.

The draft model shares block tables with the target. In a step without the drafter, only the target's part of a block is
written. Prefix caching reuses such blocks for other requests, so a position per request is not enough: the blocks that
the draft model has filled are tracked as well.

With asynchronous scheduling, the host does not know the accepted tokens of the last step yet. Positions are lower
bounds then: what is complete may be taken for missing, never the other way round.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

_EVERYTHING = sys.maxsize


class DraftCache:
    """Positions are tokens from the start of a request; `blocks` are its block ids, in order."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._until: dict[str, int] = {}
        self._filled: set[int] = set()
        self._filled_until: dict[str, int] = {}

    def forget(self, req_ids: Iterable[str]) -> None:
        """Drop requests that ended or return with other blocks. Their blocks stay tracked, because prefixes are
        cached."""
        for req_id in req_ids:
            self._until.pop(req_id, None)
            self._filled_until.pop(req_id, None)

    def complete_until(self, req_id: str, blocks: Sequence[int], start: int) -> int:
        """The first position before `start` that the draft model has not computed, or `start` or more."""
        until = self._until.get(req_id)
        if until is None:  # a new request, whose first blocks may come from the prefix cache
            until = 0
            while until < start and int(blocks[until // self._block_size]) in self._filled:
                until += self._block_size
            self._until[req_id] = until = min(until, start)
        return until

    def fill(self, req_id: str, blocks: Sequence[int], start: int, stop: int) -> None:
        """Record that the draft model computed `start` to `stop`; its cache was complete up to `start`."""
        self._until[req_id] = stop
        self._filled_until[req_id] = stop
        for index in range(start // self._block_size, stop // self._block_size):
            self._filled.add(int(blocks[index]))

    def write(
        self, req_id: str, blocks: Sequence[int], start: int, stop: int, *, drafted: bool, most: int | None = None
    ) -> None:
        """Record that the target writes `start` to `stop` in this step, and the draft model too if `drafted`. The
        target may write up to `most`, but positions from `stop` on may be those of rejected tokens.

        Earlier results of the draft model from `start` on belong to rejected tokens or to another request. If
        `drafted`, `complete_until` must have been called before.
        """
        size = self._block_size
        for index in range(start // size, -(-max(stop, most or 0) // size)):
            self._filled.discard(int(blocks[index]))
        until = self._until.get(req_id)
        if until is None:
            return
        if drafted and until >= start:
            self.fill(req_id, blocks, min(start, self._filled_until.get(req_id, start)), stop)
            self._until[req_id] = _EVERYTHING
        else:
            self._until[req_id] = min(until, start)
