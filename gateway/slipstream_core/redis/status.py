"""Counters of a store, for the metrics."""

from __future__ import annotations

import msgspec


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The present state of a store, and its counters since the start; counts are of outcomes unless stated otherwise.

    `connected`: the last exchange succeeded. `buffered`: not yet acknowledged by the server; `lag_s` is the age of the
    oldest, 0 without any. `dropped`: by a full buffer. `stored`: acknowledged. `received`: of other replicas, applied.
    `missed`: of other replicas, removed from the stream before they were read. `duplicates`: batches that were read
    again and not applied. `skipped`: entries that were not batches of ours. `rewound`: number of times that a stream
    had been replaced and was read from its beginning, because Redis was restored without it.
    """

    connected: bool = True
    buffered: int = 0
    lag_s: float = 0.0
    dropped: int = 0
    stored: int = 0
    received: int = 0
    missed: int = 0
    duplicates: int = 0
    skipped: int = 0
    rewound: int = 0
