"""Which external servers can be reached, for the gateway's report.

Requests alone do not show it: a pair without traffic would look healthy for ever, and a recovered one lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
from slipstream_core.errors import SlipstreamError
from slipstream_core.manifest.engines import SlipstreamEngine
from slipstream_core.manifest.reports import UnreachableServers, pair_object_key

from slipstream_gateway.fleet.snapshot import ServedRoute, Snapshot
from slipstream_gateway.upstreams.pool import Replica

PROBE_WITHIN_S = 4.0
MOST_BYTES = 15_000  # of the report: an object's annotations may have 256 KiB, most of it for applied generations
MOST_NAMED = 3  # servers of one pair: enough to know where to look
_MISSES = 2  # in a row, for a server that was reached before: a busy one may be late once
_AT_ONCE = 32
_log = logging.getLogger(__name__)


class Reachability:
    """Probes, every `every_s`, the servers of all pairs that name addresses, and calls `changed` after a new result.

    `unreachable` has the servers that did not answer by their pair's `namespace/ModelPair/name`, for as many pairs as
    `MOST_BYTES` can hold; None before the first round is over.
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
            await asyncio.sleep(self._every_s)

    async def _look(self) -> Mapping[str, UnreachableServers]:
        pairs = {served.route.pair.metadata.key: list(_servers(served)) for served in self._snapshot().routes.values()}
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
        if found.unreachable and size <= MOST_BYTES:
            fitting[key] = found
    return fitting


def _servers(served: ServedRoute) -> Iterator[Replica]:
    """The servers of both arms, each once, where the operator does not run them."""
    engine = served.route.pair.spec.engine
    if isinstance(engine, SlipstreamEngine) and not engine.endpoints:
        return
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
