"""The servers that must be checked according to one snapshot, and the settings of their checks. Pure."""

from __future__ import annotations

from typing import NamedTuple

from slipstream_core.manifest.table import Backend

from slipstream_gateway.decide.route.guards import off
from slipstream_gateway.fleet.snapshot import ServedRoute, Snapshot
from slipstream_gateway.upstreams.pool import Replica


class Duty(NamedTuple):
    """The settings of one server's checks. `pairs` are the keys of the pairs whose speculative arm it serves; the check
    uses the sides of the first, `served`. `draft_length` is the maximum over the pairs that may speculate; it is 0 if
    none may, for the reason `off`."""

    pairs: tuple[str, ...]
    served: ServedRoute
    speculative: Backend
    draft_length: int
    off: str | None

    @property
    def sides(self) -> tuple[Backend, Backend]:
        """The identity of a result: if it changes, the server is checked again."""
        return self.speculative, self.served.route.plain


def duties_of(snapshot: Snapshot) -> dict[Replica, Duty]:
    """The duty of each server of a speculative arm."""
    found: dict[Replica, Duty] = {}
    for served in snapshot.routes.values():
        pool, speculative = served.speculative, served.route.speculative
        if pool is None or speculative is None:
            continue
        why = _why_off(served, snapshot)
        draft_length = 0 if why is not None else served.route.pair.spec.max_draft_tokens
        duty = Duty((served.route.pair.metadata.key,), served, speculative, draft_length, why)
        for replica in pool.replicas:
            found[replica] = _joined(found[replica], duty) if replica in found else duty
    return found


def _why_off(served: ServedRoute, snapshot: Snapshot) -> str | None:
    verdict = off(served.route)
    if verdict is not None:
        return verdict.detail
    key = served.route.pair.metadata.key
    return f"the kill switch of ModelPair/{key} is on" if key in snapshot.killed else None


def _joined(one: Duty, other: Duty) -> Duty:
    """The duty of a server that serves the pairs of both."""
    is_on = one.off is None or other.off is None
    return one._replace(
        pairs=one.pairs + other.pairs,
        draft_length=max(one.draft_length, other.draft_length),
        off=None if is_on else one.off,
    )
