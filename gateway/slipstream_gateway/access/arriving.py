"""A bound on the request bodies of one key that arrive at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from slipstream_core.errors import Overloaded


class ArrivingBodies:
    """Each body that arrives slowly holds a connection, which this worker has a limited number of: a key may hold
    `per_key` of them, so that connections are left for others."""

    def __init__(self, per_key: int) -> None:
        self._per_key = per_key
        self._arriving: Counter[str] = Counter()

    @contextmanager
    def of(self, key_id: str) -> Iterator[None]:
        """While a body of the key arrives. Raises `Overloaded`."""
        if self._arriving[key_id] >= self._per_key:
            raise Overloaded(f"This key sends {self._per_key} request bodies at once already; finish some first.")
        self._arriving[key_id] += 1
        try:
            yield
        finally:
            self._arriving[key_id] -= 1
            if not self._arriving[key_id]:
                del self._arriving[key_id]
