"""How far a consumer has read a pair's outcomes: what it keeps, so that after a restart it goes on exactly there."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """A place in the stream of one pair.

    `entry` is the id of the entry read last, `numbers` for each origin (gateway process) that was heard lately the
    number of its last outcome. The entry saves reading; the numbers tell what is new where the stream is read again
    from its beginning, because Redis came back with older data.
    """

    entry: str
    numbers: Mapping[str, int]


def is_before(entry: bytes, other: bytes) -> bool:
    """Whether a stream entry's id, `milliseconds-number`, comes before another's; False where one is none."""
    first, second = entry.split(b"-"), other.split(b"-")
    if not all(len(parts) == 2 and parts[0].isdigit() and parts[1].isdigit() for parts in (first, second)):
        return False
    return (int(first[0]), int(first[1])) < (int(second[0]), int(second[1]))
