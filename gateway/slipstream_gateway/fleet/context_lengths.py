"""The contexts of models, as their servers report them: read when a client lists models, and kept for a while."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

from slipstream_core.errors import SlipstreamError, for_log

from slipstream_gateway.fleet.snapshot import ServedRoute
from slipstream_gateway.upstreams.pool import Replica

FRESH_S = 30.0
RETRY_S = 5.0
_TIMEOUT_S = 2.0  # of one server, and of a client that lists models: it does not wait for servers one after the other
_MOST_AT_ONCE = 32
_log = logging.getLogger(__name__)


class _Reading(NamedTuple):
    """The contexts by the model's name on the server; empty if they could not be read."""

    since_s: float
    contexts: asyncio.Task[Mapping[str, int]]

    def is_fresh(self, now_s: float) -> bool:
        if not self.contexts.done():
            return True
        return now_s - self.since_s < (FRESH_S if self.contexts.result() else RETRY_S)


class ContextLengths:
    """Reads the contexts of servers. Concurrent calls share one request to a server."""

    def __init__(self) -> None:
        self._readings: WeakKeyDictionary[Replica, _Reading] = WeakKeyDictionary()
        self._places = asyncio.Semaphore(_MOST_AT_ONCE)

    async def read(self, routes: Sequence[ServedRoute]) -> Sequence[int | None]:
        """For each route the smallest context among its servers, in tokens; None if no server reports one in time."""
        replicas = list({replica: None for served in routes for replica, _ in _servers(served)})
        readings = {replica: self._reading_of(replica).contexts for replica in replicas}
        if readings:
            await asyncio.wait(readings.values(), timeout=_TIMEOUT_S)
        found = {replica: reading.result() if reading.done() else {} for replica, reading in readings.items()}
        return [
            min((found[replica][name] for replica, name in _servers(served) if name in found[replica]), default=None)
            for served in routes
        ]

    def _reading_of(self, replica: Replica) -> _Reading:
        reading, now_s = self._readings.get(replica), time.monotonic()
        if reading is None or not reading.is_fresh(now_s):
            reading = _Reading(now_s, asyncio.create_task(self._ask(replica)))
            self._readings[replica] = reading
        return reading

    async def _ask(self, replica: Replica) -> Mapping[str, int]:
        try:
            async with self._places, asyncio.timeout(_TIMEOUT_S):
                models = await replica.upstream.models()
        except (SlipstreamError, TimeoutError) as exc:
            _log.debug("%s: its models cannot be read: %s", replica.name, for_log(exc))
            return {}
        except Exception:  # the top of the task; a connection may be closed meanwhile
            _log.exception("%s: its models cannot be read", replica.name)
            return {}
        return {name: context for name, context in models.items() if context is not None}


def _servers(served: ServedRoute) -> Iterator[tuple[Replica, str]]:
    """The servers of all arms, each with the model's name on it."""
    route = served.route
    arms = ((served.plain, route.plain), (served.speculative, route.speculative), (served.fallback, route.fallback))
    for pool, backend in arms:
        if pool is not None and backend is not None:
            for replica in pool.replicas:
                yield replica, backend.model
