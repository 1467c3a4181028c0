"""Recorded answers, and samples of them."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

DATA_SETS = ("spec-bench", "tools", "code", "rag", "mixed")
PARTS = ("spec-bench", "tools", "code", "rag", "contact")
"""The recorded sets; `mixed` has a fifth of each."""


class Recorded(msgspec.Struct, frozen=True, eq=False):
    """One greedy answer. `matched[i]` is the number of draft tokens that are accepted after `i + 1` tokens, `copied[i]`
    the length of the match if they are copied, 0 if a draft model made them."""

    data_set: str
    category: str
    request: dict[str, Any]
    prompt_tokens: int
    matched: list[int]
    copied: list[int]

    @property
    def tokens(self) -> int:
        return len(self.matched) + 1

    def steps(self, draft_length: int) -> int:
        """The number of the target's passes after the first token."""
        position = steps = 0
        while position < len(self.matched):
            position += 1 + min(self.matched[position], draft_length)
            steps += 1
        return steps


def read(path: Path) -> dict[str, list[Recorded]]:
    """The recordings in `path`, by data set."""
    found: dict[str, list[Recorded]] = defaultdict(list)
    for line in path.read_bytes().splitlines():
        row = msgspec.json.decode(line, type=Recorded)
        found[row.data_set].append(row)
    return found


def sample(recorded: Mapping[str, Sequence[Recorded]], data_set: str, count: int, seed: int) -> list[Recorded]:
    """`count` requests of a data set. Each seed draws answers with replacement first, so that differences between seeds
    include the choice of the answers."""
    chance = random.Random(f"{data_set}/{seed}")
    pools = [chance.choices(recorded[name], k=len(recorded[name])) for name in _parts(data_set) if recorded.get(name)]
    return [chance.choice(chance.choice(pools)) for _ in range(count)]


def _parts(data_set: str) -> Iterator[str]:
    yield from PARTS if data_set == "mixed" else (data_set,)
