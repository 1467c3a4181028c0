"""Groups of API keys, for tests that no key decides alone.

A test runs over all answers, and over those without each group in turn. Whatever one key sends, one of these tests has
no answer of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

GROUPS = 3


def group_of(key: str, firsts: Sequence[str]) -> int:
    """The group of a key. `firsts` are the first keys that were seen, at most one per group: each has its own, so that
    few keys do not share one. Later keys are assigned by a hash."""
    return firsts.index(key) if key in firsts else crc32(key.encode()) % GROUPS
