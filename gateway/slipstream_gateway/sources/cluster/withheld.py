"""The servers that may not speculate, for the gateway's report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import msgspec
from slipstream_core.manifest.reports import WithheldServer, pair_object_key
from slipstream_core.types import Capability, Reason, Withheld

from slipstream_gateway.fleet.snapshot import ServedRoute, Snapshot

MOST_BYTES = 40_000  # of the report, beside what was applied: an object's annotations may have 256 KiB
MOST_SERVERS = 5  # of one pair: enough to know where to look
_MOST_DETAIL = 200  # characters


def withheld_servers(snapshot: Snapshot) -> Mapping[str, Sequence[WithheldServer]]:
    """The servers of speculative arms that may not use a capability, by their pair's `namespace/ModelPair/name`.

    At most `MOST_SERVERS` servers of a pair, and as many pairs as `MOST_BYTES` can hold.
    """
    found: dict[str, Sequence[WithheldServer]] = {}
    left = MOST_BYTES
    for served in snapshot.routes.values():
        servers = _withheld_of(served)
        if not servers:
            continue
        entry = {pair_object_key(served.route.pair.metadata.key): servers}
        left -= len(msgspec.json.encode(entry))
        if left < 0:
            break
        found.update(entry)
    return found


def _withheld_of(served: ServedRoute) -> list[WithheldServer]:
    replicas = served.speculative.replicas if served.speculative is not None else ()
    known = ((replica.name, replica.withheld_now()) for replica in replicas)
    some = islice(((name, withheld) for name, withheld in known if withheld), MOST_SERVERS)
    return [entry for name, withheld in some for entry in _entries(name, withheld)]


def _entries(server: str, withheld: Mapping[Capability, Withheld]) -> Iterator[WithheldServer]:
    """One for each reason."""
    by_reason: defaultdict[Reason, list[Capability]] = defaultdict(list)
    details: dict[Reason, str] = {}
    for capability, why in withheld.items():
        by_reason[why.reason].append(capability)
        details.setdefault(why.reason, why.detail)
    for reason, capabilities in by_reason.items():
        yield WithheldServer(
            server=server,
            capabilities=tuple(capability.value for capability in capabilities),
            reason=reason.value,
            detail=details[reason][:_MOST_DETAIL],
        )
