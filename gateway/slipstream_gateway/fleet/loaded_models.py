"""The models that servers have loaded, if their pair has LoRA adapters: asked regularly, and after each change of the
table.

vLLM loads adapters at its start, and others while it runs. Servers of one pair may have different ones, for example
while they are replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator

from slipstream_core.errors import SlipstreamError
from slipstream_core.manifest.adapters import adapters_of

from slipstream_gateway.fleet.fleet import Fleet
from slipstream_gateway.fleet.snapshot import Snapshot
from slipstream_gateway.upstreams.pool import Replica

INTERVAL_S = 5.0
_TIMEOUT_S = 2.0

_log = logging.getLogger(__name__)


class LoadedModels:
    """Sets `Replica.models` of all servers of pairs with adapters, while `run` runs."""

    def __init__(self, fleet: Fleet, *, interval_s: float = INTERVAL_S) -> None:
        self._fleet = fleet
        self._interval_s = interval_s
        self._changed = asyncio.Event()
        fleet.on_swap(self._swapped)

    async def run(self) -> None:
        """Asks the servers until it is cancelled."""
        while True:
            self._changed.clear()
            await asyncio.gather(*map(_ask, _servers(self._fleet.current)))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._changed.wait()

    def _swapped(self, previous: Snapshot | None, snapshot: Snapshot) -> None:
        self._changed.set()


def _servers(snapshot: Snapshot) -> Iterator[Replica]:
    found = {
        replica: None
        for served in snapshot.served
        if adapters_of(served.route.pair)
        for pool in (served.plain, served.speculative, served.fallback)
        for replica in (pool.replicas if pool is not None else ())
    }
    return iter(found)


async def _ask(replica: Replica) -> None:
    """A server that does not answer keeps what is known of it: it gets no requests anyway if it is down."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            models = await replica.upstream.models()
    except (SlipstreamError, TimeoutError) as exc:
        _log.debug("%s: its models are unknown: %s", replica.name, type(exc).__name__)
        return
    if models != replica.models:
        _log.info("%s has loaded %s", replica.name, ", ".join(sorted(models)))
    replica.models = models
