"""Counters of access control, for the metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

MOST_SERIES = 1000
OTHER = "other"


class KeyUse(NamedTuple):
    """The usage of one key since the start."""

    requests: int = 0
    tokens: int = 0
    nano_usd: int = 0


class AccessStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of the counters. `denied` is by cause, `used` by key id, `decided` by where the limits were decided
    (Redis or local). `shared` says whether the replicas share their limits at present; None if they are not configured
    to."""

    keys: int
    denied: Mapping[str, int]
    used: Mapping[str, KeyUse]
    decided: Mapping[str, int]
    shared: bool | None


class Counts:
    """The counters of one worker. Beyond `MOST_SERIES` keys, the remaining keys are counted together."""

    def __init__(self) -> None:
        self.denied: dict[str, int] = {}
        self.used: dict[str, KeyUse] = {}
        self.decided: dict[str, int] = {}

    def deny(self, cause: str) -> None:
        self.denied[cause] = self.denied.get(cause, 0) + 1

    def decide(self, by: str) -> None:
        self.decided[by] = self.decided.get(by, 0) + 1

    def use(self, key_id: str, *, tokens: int, nano_usd: int) -> None:
        name = key_id if key_id in self.used or len(self.used) < MOST_SERIES else OTHER
        seen = self.used.get(name, KeyUse())
        self.used[name] = KeyUse(seen.requests + 1, seen.tokens + tokens, seen.nano_usd + nano_usd)
