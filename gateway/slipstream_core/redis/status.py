"""What a store counts, for the metrics."""

from __future__ import annotations

import msgspec


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a store now, and what it counted since its start; outcomes where nothing else is said.

    `connected`: the server answered last time. `buffered`: not acknowledged by the server yet; `lag_s` how old the
    oldest of them may be, 0 where there is none. `dropped`: a full buffer let them go. `stored`: acknowledged.
    `received`: of other replicas, applied. `missed`: of other replicas, gone from the stream before they were read.
    `duplicates`: batches that were read again, and not applied. `skipped`: entries that were no batch of ours.
    `rewound`: times that a stream was another one and was read from its beginning, since Redis came back without it.
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
