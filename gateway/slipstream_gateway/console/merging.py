"""Merges the workers' snapshots: the console shows them as one gateway."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from slipstream_core.rate_limits import InUse

from slipstream_gateway.console import ddsketch
from slipstream_gateway.console.worker import (
    ClassComparison,
    Entrance,
    Reasons,
    Resumed,
    Seat,
    Times,
    Traffic,
    WorkerSnapshot,
)


def merged(workers: Sequence[WorkerSnapshot]) -> WorkerSnapshot:
    """All of `workers` as one; the first is the one that serves the console. There must be at least one."""
    first = workers[0]
    if len(workers) == 1:
        return first
    newest = max(worker.bucket for worker in workers)
    return WorkerSnapshot(
        worker=first.worker,
        bucket=newest,
        started_s=min(worker.started_s for worker in workers),
        traffic=_traffic(workers, newest),
        times=_times(workers),
        reasons=_reasons(workers),
        resumed=_resumed(workers),
        entrances=_entrances(workers),
        denied=_counts(worker.denied for worker in workers),
        uses=_uses(workers),
        seats=_seats(workers),
        comparisons=first.comparisons if first.shares else _comparisons(workers),
        in_flight=sum(worker.in_flight for worker in workers),
        queued=sum(worker.queued for worker in workers),
        killed=sorted(set(first.killed).intersection(*(worker.killed for worker in workers))),
        generation=first.generation,
        shares=first.shares,
    )


def _traffic(workers: Iterable[WorkerSnapshot], newest: int) -> list[Traffic]:
    found: dict[tuple[str, str, str], Traffic] = {}
    for worker in workers:
        late = newest - worker.bucket
        for row in worker.traffic:
            moved = msgspec.structs.replace(
                row,
                requests=_moved(row.requests, late),
                drafted=_moved(row.drafted, late),
                accepted=_moved(row.accepted, late),
            )
            key = (row.pair, row.request_class, row.arm)
            found[key] = _added(found[key], moved) if key in found else moved
    return list(found.values())


def _moved(series: list[int], late: int) -> list[int]:
    """`series` of a worker whose newest bucket is `late` buckets behind."""
    return series if late <= 0 else (series[late:] + [0] * late)[: len(series)]


def _added(one: Traffic, other: Traffic) -> Traffic:
    return Traffic(
        pair=one.pair,
        request_class=one.request_class,
        arm=one.arm,
        requests=_sum(one.requests, other.requests),
        drafted=_sum(one.drafted, other.drafted),
        accepted=_sum(one.accepted, other.accepted),
        failed=one.failed + other.failed,
        refused=one.refused + other.refused,
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        output_tokens=one.output_tokens + other.output_tokens,
        rejected=one.rejected + other.rejected,
        total=one.total + other.total,
    )


def _sum(one: list[int], other: list[int]) -> list[int]:
    return [first + second for first, second in zip(one, other, strict=True)]


def _times(workers: Iterable[WorkerSnapshot]) -> list[Times]:
    found: dict[tuple[str, str, str], ddsketch.Bins] = {}
    for row in (row for worker in workers for row in worker.times):
        ddsketch.join(found.setdefault((row.pair, row.arm, row.measure), {}), row.bins)
    return [Times(pair=pair, arm=arm, measure=measure, bins=bins) for (pair, arm, measure), bins in found.items()]


def _reasons(workers: Iterable[WorkerSnapshot]) -> list[Reasons]:
    found: dict[tuple[str, str], int] = {}
    for row in (row for worker in workers for row in worker.reasons):
        found[row.pair, row.reason] = found.get((row.pair, row.reason), 0) + row.requests
    return [Reasons(pair=pair, reason=reason, requests=count) for (pair, reason), count in found.items()]


def _resumed(workers: Iterable[WorkerSnapshot]) -> list[Resumed]:
    found: dict[tuple[str, str], int] = {}
    for row in (row for worker in workers for row in worker.resumed):
        found[row.pair, row.cause] = found.get((row.pair, row.cause), 0) + row.streams
    return [Resumed(pair=pair, cause=cause, streams=streams) for (pair, cause), streams in found.items()]


def _entrances(workers: Iterable[WorkerSnapshot]) -> list[Entrance]:
    """Limits are summed; the pressure is the highest one, which some of the requests meet."""
    found: dict[str, list[Entrance]] = {}
    for row in (row for worker in workers for row in worker.entrances):
        found.setdefault(row.pair, []).append(row)
    return [
        Entrance(
            pair=pair,
            limit=sum(row.limit for row in rows),
            in_flight=sum(row.in_flight for row in rows),
            queued=sum(row.queued for row in rows),
            pressure=max(row.pressure for row in rows),
            refused=_counts(row.refused for row in rows),
        )
        for pair, rows in found.items()
    ]


def _counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, count in (entry for one in counts for entry in one.items()):
        found[name] = found.get(name, 0) + count
    return found


def _uses(workers: Iterable[WorkerSnapshot]) -> dict[str, InUse]:
    found: dict[str, InUse] = {}
    for key_id, usage in (entry for worker in workers for entry in worker.uses.items()):
        found[key_id] = found[key_id].plus(usage) if key_id in found else usage
    return found


def _seats(workers: Iterable[WorkerSnapshot]) -> list[Seat]:
    """Each server in the worst state that any worker reports."""
    found: dict[tuple[str, str, str], Seat] = {}
    for row in (row for worker in workers for row in worker.seats):
        key = (row.pair, row.arm, row.server)
        known = found.get(key, row)
        worse = row if known.circuit == "closed" else known
        outstanding = row.outstanding + (known.outstanding if known is not row else 0)
        withheld = row.withheld | known.withheld
        found[key] = msgspec.structs.replace(worse, outstanding=outstanding, withheld=withheld)
    return list(found.values())


def _comparisons(workers: Iterable[WorkerSnapshot]) -> list[ClassComparison]:
    found: dict[tuple[str, str], ClassComparison] = {}
    for row in (row for worker in workers for row in worker.comparisons):
        known = found.get((row.pair, row.request_class))
        if known is None:
            known = found[row.pair, row.request_class] = ClassComparison(
                pair=row.pair, request_class=row.request_class, found={}
            )
        for key, comparison in row.found.items():
            known.found.setdefault(key, type(comparison)()).join(comparison)
    return list(found.values())
