"""The condition whether a pair's servers may speculate, from the gateways' conformance checks of the engines and their
own kill switches."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from slipstream_core.manifest.reports import WithheldServer

from slipstream_operator.reconcile.reasons import Finding, Reason, listed

# The worst reason first. A gateway may be newer than the operator: an unknown code also counts against speculation.
_REASONS = {
    "kill_switch": Reason.GATEWAY_KILLED,
    "engine_not_lossless": Reason.ENGINE_NOT_LOSSLESS,
    "engine_cannot": Reason.ENGINE_CANNOT,
    "engine_unverified": Reason.ENGINE_UNVERIFIED,
}


def speculation_available(withheld: Iterable[WithheldServer], gateways: int) -> Finding:
    """The finding. `withheld` has a server once for each gateway that does not let it speculate, of `gateways` that
    report."""
    if not gateways:
        return Reason.NO_GATEWAY()
    by_reason: defaultdict[Reason, list[WithheldServer]] = defaultdict(list)
    for server in withheld:
        by_reason[_REASONS.get(server.reason, Reason.ENGINE_CANNOT)].append(server)
    for reason in _REASONS.values():
        if found := by_reason[reason]:
            return reason(_message(found, gateways))
    return Reason.ALL_SERVERS()


def _message(found: list[WithheldServer], gateways: int) -> str:
    """The capabilities that cannot be used, by server, with the number of gateways and the detail of the first
    gateway."""
    seen = Counter((one.server, one.capabilities) for one in found)
    details = {(one.server, one.capabilities): one.detail for one in reversed(found)}
    return listed(
        [
            f"{server} may not use {' and '.join(capabilities)} ({count} of {gateways} gateways): "
            f"{details[server, capabilities]}"
            for (server, capabilities), count in sorted(seen.items())
        ]
    )
