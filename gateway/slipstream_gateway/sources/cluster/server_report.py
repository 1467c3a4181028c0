"""The gateway's report on its servers: which of them can be reached, and which may not speculate, by their checks or by
the gateway's own kill switch.

Requests alone do not show which servers can be reached: a pair without traffic would look healthy for ever, and a
recovered one lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

import msgspec
from slipstream_core.errors import SlipstreamError
from slipstream_core.manifest.kill_switch import Kill
from slipstream_core.manifest.reports import EVERY_SERVER, UnreachableServers, WithheldServer, pair_object_key
from slipstream_core.types import Capability, Reason, Withheld

from slipstream_gateway.fleet.snapshot import ServedRoute, Snapshot
from slipstream_gateway.upstreams.pool import Replica

PROBE_WITHIN_S = 4.0
# Of the report: an object's annotations may have 256 KiB, most of it for applied generations.
MOST_UNREACHABLE_BYTES = 15_000
MOST_NAMED = 3  # servers of one pair: enough to know where to look
_AGAIN_S = 1.0  # after the first miss of a server
_MISSES = 2  # in a row, for a server that was reached before: a busy one may be late once
_AT_ONCE = 32
_log = logging.getLogger(__name__)


class Reachability:
    """Probes, every `every_s`, the servers of all pairs, and calls `changed` after a new result. A kubelet does not see
    an engine that hangs behind a server that answers its probes.

    `unreachable` has the servers that did not answer by their pair's `namespace/ModelPair/name`, for as many pairs as
    `MOST_UNREACHABLE_BYTES` can hold; None before the first round is over.
    """

    def __init__(self, snapshot: Callable[[], Snapshot], *, every_s: float, changed: Callable[[], None]) -> None:
        self.unreachable: Mapping[str, UnreachableServers] | None = None
        self._snapshot = snapshot
        self._every_s = every_s
        self._changed = changed
        self._misses: dict[Replica, int] = {}

    async def run(self) -> None:
        """Probes until cancelled."""
        while True:
            try:
                found = await self._look()
            except Exception:  # the top of the task: a report without it is better than none
                _log.exception("the servers could not be probed")
            else:
                if found != self.unreachable:
                    self.unreachable = found
                    self._changed()
            is_open = any(0 < misses < _MISSES for misses in self._misses.values())
            await asyncio.sleep(min(_AGAIN_S, self._every_s) if is_open else self._every_s)

    async def _look(self) -> Mapping[str, UnreachableServers]:
        pairs = {served.route.key: list(_servers(served)) for served in self._snapshot().routes.values()}
        at_once = asyncio.Semaphore(_AT_ONCE)
        replicas = {replica for servers in pairs.values() for replica in servers}
        answers = dict(zip(replicas, await asyncio.gather(*(_answers(one, at_once) for one in replicas)), strict=True))
        known, self._misses = self._misses, {}
        for replica, answered in answers.items():
            self._misses[replica] = 0 if answered else known.get(replica, _MISSES - 1) + 1
        return _fitting(self._lost(pair, servers) for pair, servers in pairs.items())

    def _lost(self, pair: str, servers: Sequence[Replica]) -> tuple[str, UnreachableServers]:
        lost = [replica.name for replica in servers if self._misses[replica] >= _MISSES]
        found = UnreachableServers(servers=tuple(lost[:MOST_NAMED]), unreachable=len(lost), total=len(servers))
        return pair_object_key(pair), found


def _fitting(pairs: Iterable[tuple[str, UnreachableServers]]) -> Mapping[str, UnreachableServers]:
    """Those with unreachable servers, as many as a report can hold."""
    fitting: dict[str, UnreachableServers] = {}
    size = 0
    for key, found in pairs:
        size += len(key) + len(msgspec.json.encode(found)) if found.unreachable else 0
        if found.unreachable and size <= MOST_UNREACHABLE_BYTES:
            fitting[key] = found
    return fitting


def _servers(served: ServedRoute) -> Iterator[Replica]:
    """The servers of both arms, each once."""
    speculative = served.speculative.replicas if served.speculative is not None else ()
    yield from {replica.name: replica for replica in (*served.plain.replicas, *speculative)}.values()


async def _answers(replica: Replica, at_once: asyncio.Semaphore) -> bool:
    async with at_once:
        try:
            async with asyncio.timeout(PROBE_WITHIN_S):
                await replica.upstream.probe()
        except (SlipstreamError, TimeoutError):
            return False
        return True


MOST_WITHHELD_BYTES = 40_000  # of the report, beside what was applied: an object's annotations may have 256 KiB
MOST_SERVERS = 5  # of one pair: enough to know where to look
_MOST_DETAIL = 200  # characters


def withheld_servers(snapshot: Snapshot) -> Mapping[str, Sequence[WithheldServer]]:
    """The servers of speculative arms that may not use a capability, by their pair's `namespace/ModelPair/name`.

    At most `MOST_SERVERS` servers of a pair, and as many pairs as `MOST_WITHHELD_BYTES` can hold.
    """
    found: dict[str, Sequence[WithheldServer]] = {}
    left = MOST_WITHHELD_BYTES
    for served in snapshot.routes.values():
        servers = _withheld_of(served)
        if not servers:
            continue
        entry = {pair_object_key(served.route.key): servers}
        left -= len(msgspec.json.encode(entry))
        if left < 0:
            break
        found.update(entry)
    return found


def withheld_by_own_kills(kills: Mapping[str, Kill]) -> Mapping[str, Sequence[WithheldServer]]:
    """An entry for all servers of each pair that this gateway alone has killed, by `namespace/ModelPair/name`."""
    everything = tuple(capability.value for capability in Capability)
    return {
        pair_object_key(pair): [
            WithheldServer(
                server=EVERY_SERVER,
                capabilities=everything,
                reason=Reason.KILL_SWITCH.value,
                detail=f"the gateway's own kill switch is on: {kill.by}, {kill.at}",
            )
        ]
        for pair, kill in kills.items()
    }


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
