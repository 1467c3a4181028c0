"""One value of each API key, and the median: the exchange of an estimate between keys.

Each key has one estimate, however many requests it sends. A key uses the median of its own expectation and of the
others' estimates. A minority of the values cannot shift a median arbitrarily (Huber 1981, section 3.1): one key moves
another key's estimate at most to a third key's value.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

Value = TypeVar("Value")
# With only one other estimate, common effects cannot be separated from that key's own.
LEAST_OTHERS = 2


class ByKey(Generic[Value]):
    """The values of the `most` keys that changed last, each from its own requests alone. `version` counts changes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[str, Value] = OrderedDict()
        self.version = 0

    def record(self, key: str, value: Value) -> None:
        """Stores the value of `key` in place of its last one."""
        self.version += 1
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._most:
            self._values.popitem(last=False)

    def others(self, key: str) -> list[Value]:
        """The values beside that of `key`; empty if they are too few to count."""
        found = [value for other, value in self._values.items() if other != key]
        return found if len(found) >= LEAST_OTHERS else []


def median_near(others: list[float], own: float) -> float:
    """The median of the `others` and of `own`; of two middle ones, the one nearer to `own`."""
    means = sorted((*others, own))
    low, high = means[(len(means) - 1) // 2], means[len(means) // 2]
    return low if abs(low - own) <= abs(high - own) else high
