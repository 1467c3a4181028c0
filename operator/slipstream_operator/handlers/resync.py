"""Periodic lists of all objects: kopf's watch alone does not report objects that were deleted while it was interrupted.

The lists also check the watch: it should soon deliver every change that a list shows.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable

from slipstream_core.kube.client import KubeClient
from slipstream_core.kube.errors import KubeError, KubeRejected

from slipstream_operator.cluster.cache import key_of
from slipstream_operator.cluster.resources import Kind, ObjectKey, Resource, Scopes
from slipstream_operator.handlers.informer import Informer
from slipstream_operator.types import KubeObject

# The second list is for kinds whose watch restarts late: after kopf's longest pause and time-outs.
RELIST_AFTER_S = (2.0, 15.0)
PROOF_WITHIN_S = 20.0

_RETRY_S = 2.0
_JITTER = 0.15
_REFUSALS = 15  # The API server may apply the operator's rights a little later than the operator starts.
_DEAD_AFTER = 2

_logger = logging.getLogger(__name__)


class WatchCheck:
    """The check that the watch of each kind delivers the changes that lists show. `clock_s` is monotonic."""

    def __init__(self, *, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._expected: dict[ObjectKey, float] = {}
        self._misses: Counter[Kind] = Counter()
        self._rounds: Counter[Kind] = Counter()

    def seen(self, key: ObjectKey) -> None:
        """Record that the watch has delivered an event of `key`."""
        self._expected.pop(key, None)
        self._rounds.pop(key.kind, None)

    def expect(self, keys: Iterable[ObjectKey]) -> None:
        """Record that a list has shown changes of `keys`, which the watch should deliver, too."""
        now_s = self._clock_s()
        for key in keys:
            self._expected.setdefault(key, now_s)

    def look(self) -> None:
        """Count the changes that were not delivered in time."""
        now_s = self._clock_s()
        late = [key for key, since_s in self._expected.items() if now_s - since_s > PROOF_WITHIN_S]
        for key in late:
            del self._expected[key]
            self._misses[key.kind] += 1
        for kind in {key.kind for key in late}:
            self._rounds[kind] += 1

    def missed(self, kind: Kind) -> int:
        return self._misses[kind]

    def dead_watches(self) -> list[Kind]:
        """The kinds whose watch has delivered nothing in several rounds that had changes."""
        return sorted(kind for kind, rounds in self._rounds.items() if rounds >= _DEAD_AFTER)


class Resync:
    """Lists the kinds that kopf watches, and passes the lists to the informer."""

    def __init__(
        self,
        *,
        client: KubeClient,
        scopes: Scopes,
        informer: Informer,
        watch_check: WatchCheck,
        every_s: float,
        clock_s: Callable[[], float],
    ) -> None:
        self._client, self._scopes, self._informer, self._check = client, scopes, informer, watch_check
        self._every_s, self._clock_s = every_s, clock_s
        self._relists_s: list[float] = []
        self.synced = False

    def observe(self, event_type: str | None, item: KubeObject) -> None:
        """Handle one watch event. A listed object means that kopf's watch has restarted: deletions may be missing, of
        every kind, since the watch of a kind without objects restarts without any event."""
        self._check.seen(key_of(item))
        if event_type is None and not self._relists_s:
            now_s = self._clock_s()
            self._relists_s = [now_s + after_s for after_s in RELIST_AFTER_S]
        self._informer.observe(event_type, item)

    async def first(self) -> None:
        """List all objects. Wait for the API server without a limit.

        Raises:
            KubeRejected: the operator lacks the rights to list, and still lacks them after half a minute.
        """
        await self._list_all()
        self.synced = True

    async def run(self) -> None:
        """List all objects every `every_s` seconds, and after the watch has restarted, until cancelled.

        Raises:
            KubeRejected: see `first`.
        """
        next_s = self._clock_s() + self._pause_s()
        while True:
            await asyncio.sleep(1.0)
            now_s = self._clock_s()
            self._check.look()
            if now_s >= next_s:
                next_s = now_s + self._pause_s()
                await self._list_all()
                self._informer.queue_all()
            elif self._relists_s and now_s >= self._relists_s[0]:
                self._relists_s.pop(0)
                await self._list_all()

    async def _list_all(self) -> None:
        for resource, scopes in self._scopes.items():
            for scope in scopes:
                await self._insist(resource, scope)

    async def _insist(self, resource: Resource, scope: str | None) -> None:
        refusals = 0
        while True:
            try:
                return await self._list(resource, scope)
            except KubeError as exc:
                refusals = refusals + 1 if isinstance(exc, KubeRejected) else 0
                if refusals >= _REFUSALS:
                    raise
                _logger.warning("a list failed, retrying: %s", exc)
                await asyncio.sleep(_RETRY_S)

    async def _list(self, resource: Resource, scope: str | None) -> None:
        seen = self._informer.newest(resource.kind)
        listed = await self._client.list(resource.collection(scope), selector=resource.selector)
        changes = self._informer.observe_list(
            resource.kind, listed.items, version=listed.version, scope=scope, seen=seen
        )
        if self.synced:
            self._check.expect(changes)

    def _pause_s(self) -> float:
        return self._every_s * random.uniform(1 - _JITTER, 1 + _JITTER)
