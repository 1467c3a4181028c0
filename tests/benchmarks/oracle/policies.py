"""Policies without a gateway: a choice for each request, given beforehand."""

from __future__ import annotations

from collections.abc import Sequence

from tests.benchmarks.oracle.recordings import Recorded
from tests.benchmarks.oracle.simulation import LONGEST_DRAFT, Choice, Done

ENGINES_CHOICE = Choice(LONGEST_DRAFT, adaptive=True)
"""The engine chooses the draft tokens of each step."""


class Given:
    """The choice for each request, by its index."""

    def __init__(self, choices: Sequence[Choice]) -> None:
        self._choices = choices

    @classmethod
    def lengths(cls, lengths: Sequence[int]) -> Given:
        return cls([Choice(length, counted=length) for length in lengths])

    def start(self, index: int, recorded: Recorded, load: int, neighbours: float) -> Choice:
        return self._choices[index]

    def done(self, index: int, recorded: Recorded, done: Done) -> None:
        """Nothing to learn."""
