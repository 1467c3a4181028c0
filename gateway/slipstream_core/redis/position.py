"""A consumer's position in the outcomes of a pair, which it saves to continue exactly there after a restart."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """A place in the stream of one pair.

    `entry` is the id of the entry read last, `numbers` the number of the last outcome per recently active origin
    (gateway process). The entry saves reading. The numbers identify new outcomes when the stream is read again from its
    beginning, because Redis was restored with older data.
    """

    entry: str
    numbers: Mapping[str, int]


def is_before(entry: bytes, other: bytes) -> bool:
    """Whether a stream entry's id, `milliseconds-number`, precedes another's; False if one is malformed."""
    first, second = entry.split(b"-"), other.split(b"-")
    if not all(len(parts) == 2 and parts[0].isdigit() and parts[1].isdigit() for parts in (first, second)):
        return False
    return (int(first[0]), int(first[1])) < (int(second[0]), int(second[1]))
