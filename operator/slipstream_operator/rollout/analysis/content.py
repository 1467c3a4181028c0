"""The comparison of the content of two revisions' answers, by measures of each answer (see `Content`).

The difference of two revisions is the total variation distance of a measure's mean shares: the largest difference of
the shares of any set of parts. The set has the parts that were more frequent in the new revision's earlier answers. It
does not depend on the answers that it is applied to, so their mean difference is at most the distance: a difference
above the limit is evidence. Of some measures only one direction is worse; their set is fixed.

Answers are compared in blocks, which end when both revisions have an answer. Requests are assigned at random, so
another mix of requests, at another time of the day, makes no difference. The guard is that of `guard`: at the limit,
two alarms are many blocks apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
from slipstream_core.manifest.rollout import Analysis
from slipstream_core.observation import Measure, Observation

from slipstream_operator.rollout.analysis.guard import Guard, bets_of

FEWEST_BLOCKS = 10
"""The number of blocks before a measure is judged."""
_CUT = "cut"
_ALL = "all classes"
_ALARM_AT = math.log(Analysis().false_alarm_requests)
_DOUBT_AT = math.log(20.0)
_MOST_PARTS = 64
_BETS = (0.3, 4.0)


class _Rule(NamedTuple):
    """How a measure is judged. `both`: a change in either direction counts, else more of it. `scale`: of the limit.
    The difference of a block counts up to `reach`; a smaller reach permits larger bets."""

    both: bool = False
    scale: float = 1.0
    reach: float = 1.0


# The mean letters of two languages differ by 0.07 (Spanish, Portuguese) to 0.15 (English, German), those of two halves
# of the texts of one source by 0.01 to 0.04.
_RULES = {
    _CUT: _Rule(),
    Measure.REFUSED: _Rule(),
    Measure.INVALID: _Rule(),
    Measure.REPEATED: _Rule(),
    Measure.TOOLS: _Rule(both=True),
    Measure.LETTERS: _Rule(both=True, scale=0.4, reach=0.25),
}


class ChangedContent(msgspec.Struct, frozen=True, kw_only=True):
    """A measure in which the new revision is shown to differ. `name` is that of one class, or of all. `share` and
    `serving_share` are the shares of the parts that are more frequent in the new revision, `limit` is that of their
    difference. `samples` are the new revision's answers."""

    name: str
    measure: str
    share: float
    serving_share: float
    limit: float
    samples: int


class _Revision:
    """The answers of one revision: the sums of their shares, and the present block's."""

    def __init__(self, parts: int) -> None:
        self.totals = [0] * parts
        self.answers = 0
        self.block: list[float] = []

    def share(self, chosen: Sequence[int]) -> float:
        """The mean share of the parts `chosen`."""
        return sum(self.totals[part] for part in chosen) / (100.0 * self.answers) if self.answers else 0.0


class _Comparison:
    """One measure of one class."""

    def __init__(self, rule: _Rule, parts: int, limit: float) -> None:
        self._rule, self.parts, self.limit = rule, parts, limit * rule.scale
        self._new, self._serving = _Revision(parts), _Revision(parts)
        self._chosen: list[int] = [] if rule.both else list(range(parts))
        self._bets = bets_of(_BETS, limit=self.limit + rule.reach, floor=False)
        self._guard = Guard()
        self._differences = 0.0

    def add(self, shares: Sequence[int], *, canary: bool) -> None:
        revision = self._new if canary else self._serving
        revision.answers += 1
        revision.totals = [total + share for total, share in zip(revision.totals, shares, strict=True)]
        revision.block.append(sum(shares[part] for part in self._chosen) / 100.0)
        if self._new.block and self._serving.block:
            self._close(_mean(self._new.block) - _mean(self._serving.block))

    def _close(self, difference: float) -> None:
        self._new.block, self._serving.block = [], []
        self._differences += difference
        reach = self._rule.reach
        excess = min(max(difference, -reach), reach) - self.limit
        self._guard.add(difference, excess, self._bets, alarm_at=_ALARM_AT, min_samples=FEWEST_BLOCKS)
        if self._rule.both:
            parts = range(self.parts)
            self._chosen = [part for part in parts if self._new.share([part]) > self._serving.share([part])]

    @property
    def blocks(self) -> int:
        return self._guard.samples

    @property
    def is_changed(self) -> bool:
        return self._guard.alarm

    @property
    def is_kept(self) -> bool:
        """Whether the limit is kept as far as known: the evidence against it is below 20 to 1."""
        return self._guard.statistic < _DOUBT_AT

    @property
    def is_within(self) -> bool:
        """Whether the mean difference is within the limit."""
        return self._differences <= self.limit * self.blocks

    def change(self, name: str, measure: str) -> ChangedContent:
        return ChangedContent(
            name=name if name == _ALL else f"class {name}",
            measure=measure,
            share=self._new.share(self._chosen),
            serving_share=self._serving.share(self._chosen),
            limit=self.limit,
            samples=self._new.answers,
        )


class ContentComparison:
    """The comparison of the content of all answers, class by class and of all together. `limit` is that of the distance
    of each measure; with 1, the largest distance, nothing is compared."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._found: dict[tuple[str, str], _Comparison] = {}

    def record(self, seen: Observation) -> None:
        """Record an answer; impossible shares are ignored."""
        if self._limit >= 1.0:
            return
        for measure, shares in _measures(seen):
            for name in (seen.request_class, _ALL):
                found = self._found.get((name, measure))
                if found is None:
                    found = self._found[name, measure] = _Comparison(_RULES[measure], len(shares), self._limit)
                if found.parts == len(shares):
                    found.add(shares, canary=seen.canary)

    def is_kept(self, *, is_long: bool) -> bool:
        """Whether the limit is kept as far as known: in each class, and over all of them on average. Before `is_long`,
        further answers are awaited if the content of few is known, or if few of a kind are beyond the limit."""
        if self._limit >= 1.0:
            return True
        pooled = [found for (name, _), found in self._found.items() if name == _ALL]
        known = self._found.get((_ALL, Measure.REFUSED))
        is_known = is_long or (known is not None and known.blocks >= FEWEST_BLOCKS)
        is_within = all(found.is_within or (is_long and found.blocks < FEWEST_BLOCKS) for found in pooled)
        return is_known and is_within and all(found.is_kept for found in self._found.values())

    @property
    def changed(self) -> ChangedContent | None:
        """The largest change that is shown, beyond the limit at all times at once."""
        found = [found.change(*key) for key, found in self._found.items() if found.is_changed]
        return max(found, key=lambda one: (one.share - one.serving_share) / max(one.limit, 1e-9), default=None)


def _measures(seen: Observation) -> Iterator[tuple[str, Sequence[int]]]:
    yield _CUT, (100 * seen.cut,)
    for measure, shares in (seen.content or {}).items():
        is_possible = 0 < len(shares) <= _MOST_PARTS and all(0 <= share <= 100 for share in shares)
        if measure in _RULES and measure != _CUT and is_possible:
            rest = (max(100 - sum(shares), 0),) if _RULES[measure].both else ()
            yield measure, (*shares, *rest)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
