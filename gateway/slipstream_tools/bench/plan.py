"""What runs when: every request in every mode, modes interleaved in an order drawn from the seed.

At concurrency 1 modes change request by request. Above it they change group by group: requests of two modes in one
batch would pay for each other, and neither would show what its mode costs at that load.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import msgspec

from slipstream_tools.bench.modes import BenchMode
from slipstream_tools.bench.requests import BenchRequest

GROUP_WAVES = 4
"""Requests of a group per concurrent client: enough that the load is full for most of the group."""


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One request in one mode of one round."""

    request: BenchRequest
    mode: BenchMode
    round: int


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Items of one mode that run together, `concurrency` at a time; the next group starts when they are done."""

    concurrency: int
    items: tuple[Item, ...]


def plan(
    requests: Sequence[BenchRequest], modes: Sequence[BenchMode], *, concurrency: int, rounds: int, seed: int
) -> Iterator[Group]:
    """The groups of one concurrency level. The same arguments give the same order."""
    order = random.Random(f"{seed}/{concurrency}")
    size = 1 if concurrency == 1 else concurrency * GROUP_WAVES
    for number in range(rounds):
        for start in range(0, len(requests), size):
            part = requests[start : start + size]
            for mode in order.sample(list(modes), len(modes)):
                yield Group(
                    concurrency=concurrency,
                    items=tuple(Item(request=request, mode=mode, round=number) for request in part),
                )
