"""Tracks the complete part of the draft model's KV cache, per request and per block.

The draft model shares block tables with the target. In a step without the drafter, only the target's part of a block is
written. Prefix caching reuses such blocks for other requests, so a position per request is not enough: the blocks that
the draft model has filled are tracked as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class DraftCache:
    """Positions are tokens from the start of a request; `blocks` are its block ids, in order."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._until: dict[str, int] = {}
        self._filled: set[int] = set()

    def forget(self, req_ids: Iterable[str]) -> None:
        """Drop requests that ended or return with other blocks. Their blocks stay tracked, because prefixes are
        cached."""
        for req_id in req_ids:
            self._until.pop(req_id, None)

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
        for index in range(start // self._block_size, stop // self._block_size):
            self._filled.add(int(blocks[index]))

    def write(self, req_id: str, blocks: Sequence[int], start: int, stop: int, *, drafted: bool) -> None:
        """Record that the target writes `start` to `stop` in this step, and the draft model too if `drafted`.

        Earlier results of the draft model from `start` on belong to rejected tokens or to another request. If
        `drafted`, `complete_until` must have been called before.
        """
        size = self._block_size
        for index in range(start // size, -(-stop // size)):
            self._filled.discard(int(blocks[index]))
        if req_id in self._until:
            self._until[req_id] = min(self._until[req_id], start)
        if drafted and self._until[req_id] == start:
            self.fill(req_id, blocks, start, stop)
