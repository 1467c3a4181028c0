"""The models that servers have loaded, if their pair has LoRA adapters: read every few seconds, and after each change
of the table.

vLLM loads adapters at its start, and others while it runs. Servers of one pair may have different ones, for example
while they are replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator

from slipstream_core.errors import SlipstreamError, UpstreamError, for_log
from slipstream_core.manifest.adapters import adapters_of
from slipstream_core.tasks import beside

from slipstream_gateway.fleet.fleet import Fleet
from slipstream_gateway.fleet.snapshot import Snapshot
from slipstream_gateway.upstreams.pool import Replica

INTERVAL_S = 5.0
_PAUSE_S = 1.0  # at least, however often the table changes
_TIMEOUT_S = 2.0

_log = logging.getLogger(__name__)


class LoadedModels:
    """Sets `Replica.models` of all servers of pairs with adapters, within `running`."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._changed = asyncio.Event()
        fleet.on_swap(self._swapped)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Reads the models once on entry, and from then on until the context is left."""
        await self._read_all()
        async with beside(self._run()):
            yield

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_PAUSE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(INTERVAL_S - _PAUSE_S):
                    await self._changed.wait()
            await self._read_all()

    async def _read_all(self) -> None:
        self._changed.clear()
        try:
            await asyncio.gather(*map(_read, _servers(self._fleet.current)))
        except UpstreamError:
            _log.debug("there is no table yet")
        except Exception:  # the top of the task: a bug with one server must not end it
            _log.exception("the models of servers could not be read")

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


async def _read(replica: Replica) -> None:
    """Reads the models of one server. If that fails, what was known of it stays."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            models = frozenset(await replica.upstream.models())
    except (SlipstreamError, TimeoutError) as exc:
        level = logging.WARNING if replica.models is None else logging.DEBUG
        _log.log(level, "%s: its models cannot be read: %s", replica.name, for_log(exc))
        return
    if models != replica.models:
        _log.info("%s has loaded %s", replica.name, ", ".join(sorted(models)))
    replica.models = models
