"""Which of several drafts suits which requests, learned from the answers themselves.

Requests of one group, such as a class of tasks, are alike. For each group a draft is an arm of a bandit, whose cost is
the engine time per token, and Thompson sampling (Thompson 1933; Chapelle & Li, NIPS 2011) chooses: each draft is taken
as often as it is likely to be the best. The costs of a group are normally distributed in their logarithms. What is
expected of a draft before its first answers in a group is what it costs in other groups, beside the first draft. What
is known fades, so that a draft that has become better is found. Drafts do not change answers: trying one costs time
alone.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from enum import StrEnum
from statistics import NormalDist
from typing import NamedTuple

_FIRST = 2  # answers of a group with the first draft, before others are compared with it
_KEPT = 1.0 - 1.0 / 500.0  # of what is known of a group, after each of its answers
_BETWEEN_GROUPS = 0.5  # standard deviation of a draft's cost relative to the first one's, in logarithms
_MOST_APART = 0.6  # what an answer's cost is taken to differ from the mean at most
_SURE = 0.975  # probability
_SPREAD, _SPREAD_WEIGHT = 0.3, 20.0  # that of an answer's cost, before it is known; weight in answers
MOST_GROUPS = 256


class Standing(StrEnum):
    """What the answers of a group say of a draft. `PROMOTED`: it is the best one with a probability of 97.5 %.
    `TAKEN_BACK`: another one is better with that probability. Both are reversible."""

    PROMOTED = "promoted"
    UNDECIDED = "undecided"
    TAKEN_BACK = "taken_back"


class Known(NamedTuple):
    """What is known of a draft in a group: the mean of the logarithm of seconds per token, over `weight` answers."""

    weight: float = 0.0
    mean: float = 0.0

    def with_answer(self, value: float) -> Known:
        weight = self.weight + 1.0
        return Known(weight, self.mean + (value - self.mean) / weight)

    def faded(self) -> Known:
        return self._replace(weight=self.weight * _KEPT)


class _Belief(NamedTuple):
    """A normally distributed cost."""

    mean: float
    variance: float

    def draw(self, rng: random.Random) -> float:
        return rng.gauss(self.mean, math.sqrt(self.variance))


class DraftBandit:
    """Chooses among `count` drafts, of which the first one is that to start with."""

    def __init__(self, count: int, rng: random.Random | None = None) -> None:
        self._count = count
        self._retired: set[int] = set()
        self._only: dict[int, str] = {}
        self._rng = rng or random.Random()  # nosec B311 # no secret
        self._groups: OrderedDict[str, list[Known]] = OrderedDict()
        self._variance = _SPREAD**2  # of an answer's cost within a group
        self._answers = _SPREAD_WEIGHT

    def add(self, only: str = "") -> int:
        """Add a draft of which nothing is known. Returns its number. With `only` the draft is for that group, and for
        groups whose names begin with it and a slash. Without, it is for all groups."""
        if only:
            self._only[self._count] = only
        self._count += 1
        for known in self._groups.values():
            known.append(Known())
        return self._count - 1

    def retire(self, number: int) -> None:
        """Never choose the draft `number` again. The first draft cannot be retired."""
        self._retired.add(number)

    def choose(self, group: str) -> int:
        """The number of the draft for a new request of `group`."""
        if self._count == 1 + len(self._retired):
            return 0
        known = self._known(group)
        if known[0].weight < _FIRST * _KEPT**_FIRST:
            return 0
        beliefs = self._beliefs(group, known, self._offsets())
        drawn = {number: belief.draw(self._rng) for number, belief in beliefs.items()}
        return min(drawn, key=drawn.__getitem__)

    def standings(self, group: str) -> list[Standing]:
        """What is known of each draft in `group`; nothing before its first answer there."""
        return self._standings(group, self._groups.get(group, []), self._offsets())

    def all_standings(self) -> dict[str, list[Standing]]:
        """`standings` of every group. The group of the latest request comes last."""
        offsets = self._offsets()
        return {group: self._standings(group, known, offsets) for group, known in self._groups.items()}

    def is_for(self, number: int, group: str) -> bool:
        """Whether requests of `group` may have the draft `number`."""
        only = self._only.get(number)
        return number not in self._retired and (only is None or group == only or group.startswith(f"{only}/"))

    def learn(self, group: str, number: int, seconds: float, tokens: int) -> None:
        """An answer with the draft `number` took `seconds` of engine time for `tokens`."""
        if self._count == 1 or tokens < 1 or seconds <= 0.0:
            return
        known, value = self._known(group), math.log(seconds / tokens)
        before = known[number]
        usual = before.mean if before.weight else known[0].mean
        if before.weight or known[0].weight:  # one slow answer must not decide
            value = max(usual - _MOST_APART, min(usual + _MOST_APART, value))
        known[:] = [one.faded() for one in known]
        known[number] = known[number].with_answer(value)
        if before.weight >= 1.0:
            self._answers = min(self._answers + 1.0, 1.0 / (1.0 - _KEPT))
            squared = (value - before.mean) * (value - known[number].mean)
            self._variance += (squared - self._variance) / self._answers

    def costs(self) -> dict[str, Sequence[tuple[float, float]]]:
        """For each group, the answers that count and the seconds per token of each draft."""
        return {
            group: [(one.weight, math.exp(one.mean) if one.weight else math.nan) for one in known]
            for group, known in self._groups.items()
        }

    def _standings(self, group: str, known: Sequence[Known], offsets: Mapping[int, float]) -> list[Standing]:
        beliefs = self._beliefs(group, known, offsets) if known else {}
        tried = {number: belief for number, belief in beliefs.items() if known[number].weight}
        return [_standing(number, tried) for number in range(self._count)]

    def _beliefs(self, group: str, known: Sequence[Known], offsets: Mapping[int, float]) -> dict[int, _Belief]:
        """The costs of the group's drafts, as likely as its answers and those of other groups make them."""
        return {
            number: self._belief(known[number], known[0].mean + offset)
            for number, offset in offsets.items()
            if self.is_for(number, group)
        }

    def _belief(self, known: Known, expected: float) -> _Belief:
        precision = 1.0 / _BETWEEN_GROUPS**2 + known.weight / self._variance
        mean = (expected / _BETWEEN_GROUPS**2 + known.weight * known.mean / self._variance) / precision
        return _Belief(mean, 1.0 / precision)

    def _offsets(self) -> dict[int, float]:
        """`_offset` of each draft that is served."""
        return {number: self._offset(number) for number in range(self._count) if number not in self._retired}

    def _offset(self, number: int) -> float:
        """How much dearer a draft is than the first one, over all groups that know both; 0 for one more group."""
        pairs = ((known[0], known[number]) for known in self._groups.values())
        found = [other.mean - first.mean for first, other in pairs if min(first.weight, other.weight) >= 1.0]
        return sum(found) / (len(found) + 1)

    def _known(self, group: str) -> list[Known]:
        """Of each draft in `group`. Of too many groups, the one that was asked for least recently is forgotten."""
        known = self._groups.setdefault(group, [Known()] * self._count)
        self._groups.move_to_end(group)
        if len(self._groups) > MOST_GROUPS:
            self._groups.popitem(last=False)
        return known


def _standing(number: int, tried: dict[int, _Belief]) -> Standing:
    others = [belief for other, belief in tried.items() if other != number]
    if number not in tried or not others:
        return Standing.UNDECIDED
    own, best = tried[number], min(others, key=lambda belief: belief.mean)
    better = NormalDist().cdf((best.mean - own.mean) / math.sqrt(own.variance + best.variance))
    if better >= _SURE:
        return Standing.PROMOTED
    return Standing.TAKEN_BACK if better <= 1.0 - _SURE else Standing.UNDECIDED
