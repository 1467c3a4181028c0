"""One copy of what objects have in common: the children of a thousand pairs differ in a few fields."""

from __future__ import annotations

import sys
from typing import Any

_KNOWN_PARTS = 4096


class Sharing:
    """Remembers the last parts of objects, so that equal ones are stored once. Its results must not be changed."""

    def __init__(self) -> None:
        # By the field names and the identity of the values, which exist as long as the part that has them.
        self._parts: dict[tuple[str | int, ...], Any] = {}

    def shared(self, node: Any) -> Any:
        """A copy of plain JSON data that shares its texts and parts with earlier ones."""
        if type(node) is str:
            return sys.intern(node)
        if type(node) is dict:
            fields = {sys.intern(name): self.shared(value) for name, value in node.items()}
            return self._known((*fields, *map(id, fields.values())), fields)
        if type(node) is list:
            items = [self.shared(item) for item in node]
            return self._known(tuple(map(id, items)), items)
        return node

    def _known(self, key: tuple[str | int, ...], part: Any) -> Any:
        if len(self._parts) >= _KNOWN_PARTS:
            self._parts.clear()
        known = self._parts.setdefault(key, part)
        return known if type(known) is type(part) else part  # {} and []
