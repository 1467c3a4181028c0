"""A prediction, not a measurement: how many rows the early exit saves, from a simulation of the scan's programs.

Programs (position, request, split) take the GPU's slots in position-major order. Each looks at its request's state,
reads its part of the row at a fair share of the memory's bandwidth, and the last one of a row decides it some time
later. What starts in between reads rows that turn out not to matter: the fewer bytes are under way at once, the fewer
of those. Compute is not modelled, nor is what the L2 cache does; the latencies are assumptions.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A GPU as the simulation sees it. The latencies are guesses of the right size for a Hopper GPU under load."""

    multiprocessors: int = 132
    bandwidth_bytes_per_us: float = 4.2e6
    program_start_us: float = 1.0
    """From a free slot to the answer of the load that asks whether the row still matters."""
    tile_latency_us: float = 0.8
    """What one tile takes on an idle memory: a program has one tile under way at a time."""
    program_end_us: float = 1.0
    """From a program's last byte to its slot's release: the last tile's arithmetic, its statistics, one atomic."""
    decision_us: float = 1.5
    """From there to the row's published decision: its statistics back from the L2, and another atomic."""
    launch_us: float = 2.5
    """Launch, first instruction to last, and the emission of the last token."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a launch cuts its rows: `splits` programs per row, tiles of `block` tokens, `per_multiprocessor` programs
    resident at once."""

    splits: int
    block: int
    per_multiprocessor: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Rows read over those that had to be, and over all γ + 1 of each request; microseconds of the launch."""

    rows_read: float
    rows_needed: float
    rows: int
    time_us: float


def accepted_counts(requests: int, draft_tokens: int, acceptance: float, seed: int) -> list[int]:
    """How many drafted tokens each request keeps when each is accepted with probability `acceptance`."""
    draw = random.Random(seed)
    counts = []
    for _ in range(requests):
        accepted = 0
        while accepted < draft_tokens and draw.random() < acceptance:
            accepted += 1
        counts.append(accepted)
    return counts


def simulate(
    accepted: list[int], draft_tokens: int, vocabulary: int, layout: Layout, machine: Machine, *, lazy: bool = True
) -> Outcome:
    """One launch over `len(accepted)` requests with bf16 logits, request i keeping `accepted[i]` drafted tokens."""
    run = _Launch(accepted, draft_tokens, vocabulary, layout, machine, lazy)
    run.finish()
    needed = sum(count + 1 for count in accepted)
    return Outcome(
        rows_read=run.parts_read / layout.splits,
        rows_needed=needed,
        rows=len(accepted) * (draft_tokens + 1),
        time_us=run.now + machine.launch_us,
    )


class _Launch:
    """Programs wait for a slot, for the state word (`starting`), for bytes (`reading`) or for their end (`ending`).

    All readers get the same rate, so `served`, the bytes that each reader present since the beginning would have,
    orders them: a reader ends when `served` has grown by what it needs.
    """

    def __init__(
        self, accepted: list[int], draft_tokens: int, vocabulary: int, layout: Layout, machine: Machine, lazy: bool
    ) -> None:
        self.accepted, self.layout, self.machine, self.lazy = accepted, layout, machine, lazy
        order = ((j, i) for j in range(draft_tokens + 1) for i in range(len(accepted)))
        self.waiting = iter([row for row in order for _ in range(layout.splits)])
        self.starting: deque[tuple[float, int, int]] = deque()
        self.reading: list[tuple[float, int, int]] = []
        self.ending: deque[tuple[float, int, int]] = deque()
        self.left: dict[tuple[int, int], int] = {}
        self.decided_us: dict[int, float] = {}
        self.bytes_each = vocabulary * 2 / layout.splits
        self.fastest = min(layout.block * 2, self.bytes_each) / machine.tile_latency_us
        self.now = self.served = 0.0
        self.parts_read = 0
        self.luck = random.Random(0)
        for _ in range(machine.multiprocessors * layout.per_multiprocessor):
            self._start_next()

    def finish(self) -> None:
        """Run until nothing is left."""
        while self.starting or self.reading or self.ending:
            rate = min(self.fastest, self.machine.bandwidth_bytes_per_us / max(len(self.reading), 1))
            looks = self.starting[0][0] if self.starting else math.inf
            leaves = self.ending[0][0] if self.ending else math.inf
            has_read = self.now + (self.reading[0][0] - self.served) / rate if self.reading else math.inf
            then = min(looks, leaves, has_read)
            self.served += rate * (then - self.now)
            self.now = then
            if then == looks:
                self._look(*self.starting.popleft()[1:])
            elif then == leaves:
                self._leave(*self.ending.popleft()[1:])
            else:
                _, position, request = heapq.heappop(self.reading)
                self.ending.append((self.now + self.machine.program_end_us, position, request))

    def _start_next(self) -> None:
        row = next(self.waiting, None)
        if row is not None:
            self.starting.append((self.now + self.machine.program_start_us, *row))

    def _look(self, position: int, request: int) -> None:
        """A program knows now whether its row matters."""
        if self.lazy and self.decided_us.get(request, math.inf) <= self.now:
            self._start_next()
            return
        self.parts_read += 1
        # Shares are fair on average only: in lockstep, all would look at their states at once and nobody read.
        share = self.luck.uniform(0.6, 1.4)
        heapq.heappush(self.reading, (self.served + self.bytes_each * share, position, request))

    def _leave(self, position: int, request: int) -> None:
        """A program has counted itself; the last one of the row at which the request ends will publish that."""
        left = self.left.get((position, request), self.layout.splits) - 1
        self.left[position, request] = left
        if left == 0 and position == self.accepted[request]:
            self.decided_us[request] = self.now + self.machine.decision_us
        self._start_next()
