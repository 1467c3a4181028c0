"""A bounded map of recurring entries that a flood of one-off entries cannot evict.

Segmented least recently used (Karedla et al. 1994): a new entry is on probation in a separate segment; a proven one
moves to the protected segment, where only other proven ones can evict it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

Value = TypeVar("Value")
_PROTECTED_SHARE = 0.8


class SegmentedMap(Generic[Value]):
    """At most `capacity` values by key. The protected segment has at most four fifths of them, probation the rest."""

    def __init__(self, capacity: int) -> None:
        self._capacity = max(capacity, 2)
        self._protected_capacity = max(1, int(self._capacity * _PROTECTED_SHARE))
        self._probation: OrderedDict[str, Value] = OrderedDict()
        self._protected: OrderedDict[str, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._probation) + len(self._protected)

    def peek(self, key: str) -> Value | None:
        """The value at `key`, without counting as use."""
        found = self._protected.get(key)
        return found if found is not None else self._probation.get(key)

    def add(self, key: str, value: Value) -> None:
        """A new value, on probation."""
        self._probation[key] = value
        if len(self) > self._capacity:
            self._probation.popitem(last=False)

    def touch(self, key: str, *, protect: bool) -> None:
        """Records the use of a stored value; `protect` a proven one."""
        if key in self._protected:
            self._protected.move_to_end(key)
            return
        if not protect:
            self._probation.move_to_end(key)
            return
        self._protected[key] = self._probation.pop(key)
        if len(self._protected) > self._protected_capacity:
            self.add(*self._protected.popitem(last=False))
