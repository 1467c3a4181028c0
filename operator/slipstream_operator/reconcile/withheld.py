"""The condition whether a pair's servers may speculate, from the gateways' conformance checks of the engines."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from slipstream_core.manifest.reports import WithheldServer
from slipstream_core.manifest.status import ConditionStatus

from slipstream_operator.reconcile.pair_conditions import Finding, PairReason

_MOST_NAMED = 5
# The worst reason first. A gateway may be newer than the operator: an unknown code also counts against speculation.
_REASONS = {
    "engine_not_lossless": PairReason.ENGINE_NOT_LOSSLESS,
    "engine_cannot": PairReason.ENGINE_CANNOT,
    "engine_unverified": PairReason.ENGINE_UNVERIFIED,
}


def speculation_available(withheld: Iterable[WithheldServer], gateways: int) -> Finding:
    """The finding. `withheld` has a server once for each gateway that does not let it speculate, of `gateways` that
    report."""
    if not gateways:
        return Finding("Unknown", PairReason.NO_GATEWAY, "no gateway reports")
    by_reason: defaultdict[PairReason, list[WithheldServer]] = defaultdict(list)
    for server in withheld:
        by_reason[_REASONS.get(server.reason, PairReason.ENGINE_CANNOT)].append(server)
    for reason in _REASONS.values():
        if found := by_reason[reason]:
            status: ConditionStatus = "Unknown" if reason is PairReason.ENGINE_UNVERIFIED else "False"
            return Finding(status, reason, _message(found, gateways))
    return Finding("True", PairReason.ALL_SERVERS, "every server may speculate")


def _message(found: list[WithheldServer], gateways: int) -> str:
    """The capabilities that cannot be used, by server, with the number of gateways and the detail of the first
    gateway."""
    seen = Counter((one.server, one.capabilities) for one in found)
    details = {(one.server, one.capabilities): one.detail for one in reversed(found)}
    parts = [
        f"{server} may not use {' and '.join(capabilities)} ({count} of {gateways} gateways): "
        f"{details[server, capabilities]}"
        for (server, capabilities), count in sorted(seen.items())[:_MOST_NAMED]
    ]
    more = len(seen) - _MOST_NAMED
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")
