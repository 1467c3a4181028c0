"""A mean over members with a cap for each: the estimate of a class over its sources, of a pair over its classes.

Each member has its own running mean and counts for at most `cap` observations, however many it sends: a flood from one
source moves a class by one source's weight.
"""

from __future__ import annotations

from collections import OrderedDict

_MAX_MEMBERS = 32
_KEEP = 1.0 - 1.0 / 100.0
# The maximum weight of a source in its class, and of a class in its pair, in observations.
SOURCE_CAP, CLASS_CAP = 10.0, 20.0


class _Member:
    __slots__ = ("mean", "weight")

    def __init__(self) -> None:
        self.weight = self.mean = 0.0


class PooledMean:
    """`mean` over all members, `weight` observations behind it after the cap; the least recent members are dropped when
    there are too many."""

    __slots__ = ("_cap", "_members", "_sum", "weight")

    def __init__(self, cap: float) -> None:
        self._cap = cap
        self._members: OrderedDict[str, _Member] = OrderedDict()
        self._sum = self.weight = 0.0

    @property
    def mean(self) -> float:
        return self._sum / self.weight if self.weight > 0.0 else 0.0

    @property
    def members(self) -> int:
        return len(self._members)

    def add(self, key: str, value: float, weight: float = 1.0) -> None:
        """Records an observation of member `key`; `weight` is in (0, 1]."""
        member = self._members.get(key)
        if member is None:
            member = self._members[key] = _Member()
        else:
            self._members.move_to_end(key)
        self._count(member, -1.0)
        member.weight = member.weight * _KEEP + weight
        member.mean += (value - member.mean) * weight / member.weight
        self._count(member, 1.0)
        if len(self._members) > _MAX_MEMBERS:
            self._count(self._members.popitem(last=False)[1], -1.0)

    def _count(self, member: _Member, sign: float) -> None:
        counted = sign * min(member.weight, self._cap)
        self.weight += counted
        self._sum += counted * member.mean
