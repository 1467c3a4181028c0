"""The gateway's state, as the console shows it."""

from __future__ import annotations

import msgspec

from slipstream_gateway.console import ddsketch
from slipstream_gateway.console.recent_traffic import BUCKETS, CellKey, RecentTraffic
from slipstream_gateway.decide.estimate.evidence import ByKey

RECENT_BUCKETS = 4
"""The number of newest buckets that count as the present."""


class Traffic(msgspec.Struct, kw_only=True):
    """One pair, class and arm: requests by bucket, oldest first, and sums over the window. `refused` counts errors of
    clients, `failed` all other errors, `total` the requests since the gateway's start."""

    pair: str
    request_class: str
    arm: str
    requests: list[int]
    drafted: list[int]
    accepted: list[int]
    failed: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    rejected: int = 0
    total: int = 0


class Times(msgspec.Struct, kw_only=True):
    """The times of one pair and arm; `measure` is `ttft`, `tpot` or `e2e`."""

    pair: str
    arm: str
    measure: str
    bins: dict[int, int]


class Reasons(msgspec.Struct, kw_only=True):
    """The number of decisions by reason."""

    pair: str
    reason: str
    requests: int


class Resumed(msgspec.Struct, kw_only=True):
    """The number of streams that failed for a cause and continued elsewhere."""

    pair: str
    cause: str
    streams: int


class Entrance(msgspec.Struct, kw_only=True):
    """The admission state of one pair: how many requests may run, run and wait. `pressure` in [0, 1] reduces
    speculation; `refused` counts since the start, by cause."""

    pair: str
    limit: int
    in_flight: int
    queued: int
    pressure: float
    refused: dict[str, int]


class Seat(msgspec.Struct, kw_only=True):
    """A server of one arm. `circuit` is `closed` if it accepts requests, `open` if it is ejected
    for another `retry_after_s` because of `cause`, `half_open` while it is probed. `withheld` are the capabilities that
    it may not use, with the reason; `longest_draft` is its maximum draft length if that is below the pair's."""

    pair: str
    arm: str
    server: str
    outstanding: int
    circuit: str
    cause: str | None = None
    retry_after_s: float = 0.0
    withheld: dict[str, str] = {}
    longest_draft: int | None = None


class ClassComparison(msgspec.Struct, kw_only=True):
    """Speculative answers and the control of one class, by key."""

    pair: str
    request_class: str
    found: ByKey


class GatewayState(msgspec.Struct, kw_only=True):
    """The whole state. `bucket` is the number of the newest bucket; `denied` counts refusals by keys and their limits,
    by cause; `killed` are the keys of the killed pairs."""

    bucket: int
    started_s: float
    traffic: list[Traffic]
    times: list[Times]
    reasons: list[Reasons]
    resumed: list[Resumed]
    entrances: list[Entrance]
    denied: dict[str, int]
    seats: list[Seat]
    comparisons: list[ClassComparison]
    in_flight: int
    queued: int
    killed: list[str]
    generation: str


def traffic_of(recorder: RecentTraffic) -> tuple[int, list[Traffic], list[Times], list[Reasons], list[Resumed]]:
    """The sums over the recorder's window."""
    newest, buckets = recorder.buckets()
    rows: dict[CellKey, Traffic] = {key: _empty(key, total) for key, total in recorder.totals.items()}
    times: dict[CellKey, ddsketch.Bins] = {}
    reasons: dict[tuple[str, str], int] = {}
    resumed: dict[tuple[str, str], int] = {}
    for bucket in buckets:
        at = bucket.number - newest + BUCKETS - 1
        for key, cell in bucket.cells.items():
            row = rows.get(key)
            if row is None or at >= BUCKETS:  # after the clock was set back
                continue
            row.requests[at] += cell.requests
            row.drafted[at] += cell.drafted
            row.accepted[at] += cell.accepted
            row.failed += cell.failed
            row.refused += cell.refused
            row.prompt_tokens += cell.prompt_tokens
            row.output_tokens += cell.output_tokens
            row.rejected += cell.rejected
        for key, bins in bucket.times.items():
            ddsketch.join(times.setdefault(key, {}), bins)
        for reason, count in bucket.reasons.items():
            reasons[reason] = reasons.get(reason, 0) + count
        for cause, count in bucket.resumed.items():
            resumed[cause] = resumed.get(cause, 0) + count
    return (
        newest,
        list(rows.values()),
        [Times(pair=pair, arm=arm, measure=measure, bins=bins) for (pair, arm, measure), bins in times.items()],
        [Reasons(pair=pair, reason=reason, requests=count) for (pair, reason), count in reasons.items()],
        [Resumed(pair=pair, cause=cause, streams=count) for (pair, cause), count in resumed.items()],
    )


def _empty(key: CellKey, total: int) -> Traffic:
    pair, request_class, arm = key
    return Traffic(
        pair=pair,
        request_class=request_class,
        arm=arm,
        requests=[0] * BUCKETS,
        drafted=[0] * BUCKETS,
        accepted=[0] * BUCKETS,
        total=total,
    )
