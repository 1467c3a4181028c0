"""Which of several drafts suits which requests, learned from the answers themselves.

Requests of one group, such as a class of tasks, are alike. For each group a draft is an arm of a bandit, whose cost is
the engine time per token, and Thompson sampling (Thompson 1933; Chapelle & Li, NIPS 2011) chooses: each draft is taken
as often as it is likely to be the best. What is known fades, so that a draft that has become better is found. Drafts do
not change answers, so that trying one costs time alone.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Sequence

_FIRST = 4  # answers of a group with each draft, before the drafts are compared
_KEPT = 1.0 - 1.0 / 500.0  # of what is known of a group, after each of its answers
_SPREAD, _SPREAD_WEIGHT = 0.3, 4.0  # standard deviation of the logarithm of an answer's cost, before it is known
MOST_GROUPS = 256


class Arm:
    """What a draft costs in a group: the mean of the logarithm of seconds per token, over its answers, of which those
    that are not forgotten have the `weight`."""

    def __init__(self) -> None:
        self.answers = 0
        self.weight = self.mean = 0.0
        self._squares = _SPREAD_WEIGHT * _SPREAD**2  # of the differences from the mean
        self._count = _SPREAD_WEIGHT

    def learn(self, value: float) -> None:
        self.answers += 1
        self.weight += 1.0
        self._count += 1.0
        before = value - self.mean
        self.mean += before / self.weight
        self._squares += before * (value - self.mean)

    def fade(self) -> None:
        self.weight *= _KEPT
        self._count *= _KEPT
        self._squares *= _KEPT

    def drawn(self, rng: random.Random) -> float:
        """A mean that is as likely as the answers make it."""
        deviation = math.sqrt(self._squares / self._count / max(self.weight, 0.25))
        return rng.gauss(self.mean, deviation)


class DraftChoice:
    """Chooses among `count` drafts."""

    def __init__(self, count: int, rng: random.Random | None = None) -> None:
        self._count = count
        self._rng = rng or random.Random()  # nosec B311 # no secret
        self._groups: OrderedDict[str, tuple[Arm, ...]] = OrderedDict()

    def choose(self, group: str) -> int:
        """The number of the draft for a new request of `group`."""
        if self._count == 1:
            return 0
        arms = self._arms(group)
        if unknown := [number for number, arm in enumerate(arms) if arm.answers < _FIRST]:
            return self._rng.choice(unknown)
        drawn = [arm.drawn(self._rng) for arm in arms]
        return drawn.index(min(drawn))

    def learn(self, group: str, number: int, seconds: float, tokens: int) -> None:
        """An answer with the draft `number` took `seconds` of engine time for `tokens`."""
        if self._count == 1 or tokens < 1 or seconds <= 0.0:
            return
        arms = self._arms(group)
        for arm in arms:
            arm.fade()
        arms[number].learn(math.log(seconds / tokens))

    def costs(self) -> dict[str, Sequence[tuple[float, float]]]:
        """For each group, the answers that count and the seconds per token of each draft."""
        return {
            group: [(arm.weight, math.exp(arm.mean) if arm.weight else math.nan) for arm in arms]
            for group, arms in self._groups.items()
        }

    def _arms(self, group: str) -> tuple[Arm, ...]:
        """Those of `group`. Of too many groups, the one that was asked for least recently is forgotten."""
        arms = self._groups.setdefault(group, tuple(Arm() for _ in range(self._count)))
        self._groups.move_to_end(group)
        if len(self._groups) > MOST_GROUPS:
            self._groups.popitem(last=False)
        return arms
