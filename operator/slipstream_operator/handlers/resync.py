"""Lists of everything, now and then: the watch alone would not tell what was deleted while it was interrupted.

It is also the watch's examiner: what a list brings that the watch does not bring soon afterwards, it has missed.
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
from slipstream_operator.cluster.resources import Kind, ObjectKey, Resource
from slipstream_operator.handlers.informer import Informer
from slipstream_operator.types import KubeObject

RELIST_AFTER_S = 2.0
RELIST_OTHERS_AFTER_S = (2.0, 15.0)
PROOF_WITHIN_S = 20.0

_RETRY_S = 2.0
_JITTER = 0.15
_REFUSALS = 15  # Rights may be granted, and an API server may know of them, a little later than we start.
_DEAF_AFTER = 2

_logger = logging.getLogger(__name__)


class WatchCheck:
    """Whether the watch of each kind brings what lists bring. `clock_s` is monotonic."""

    def __init__(self, *, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._expected: dict[ObjectKey, float] = {}
        self._misses: Counter[Kind] = Counter()
        self._rounds: Counter[Kind] = Counter()

    def seen(self, key: ObjectKey) -> None:
        """The watch has brought something of `key`."""
        if self._expected.pop(key, None) is not None or key.kind in self._rounds:
            self._rounds.pop(key.kind, None)

    def expect(self, keys: Iterable[ObjectKey]) -> None:
        """A list has brought news of `keys`: the watch should, too."""
        now_s = self._clock_s()
        for key in keys:
            self._expected.setdefault(key, now_s)

    def look(self) -> None:
        """Count what has not come in time."""
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
        """The kinds whose watch has brought nothing in several rounds in which there was something."""
        return sorted(kind for kind, rounds in self._rounds.items() if rounds >= _DEAF_AFTER)


class Resync:
    """Lists what the operator watches, and hands it to the informer."""

    def __init__(
        self,
        *,
        client: KubeClient,
        resources: dict[Kind, Resource],
        namespaces: tuple[str, ...],
        informer: Informer,
        watch_check: WatchCheck,
        every_s: float,
        clock_s: Callable[[], float],
    ) -> None:
        """`namespaces` are those watched, empty for all."""
        self._client, self._resources, self._informer, self._check = client, resources, informer, watch_check
        self._scopes: tuple[str | None, ...] = namespaces or (None,)
        self._every_s, self._clock_s = every_s, clock_s
        self._relist_at: dict[Kind, list[float]] = {}
        self._spoken: set[Kind] = set()
        self.synced = False

    def observe(self, event_type: str | None, item: KubeObject) -> None:
        """One watch event on its way in. A listed object means that the watch began anew: deletions may be missing."""
        key = key_of(item)
        self._check.seen(key)
        if event_type is None:
            self._plan_relists(key.kind)
        self._informer.observe(event_type, item)

    async def first(self) -> None:
        """List everything, however long the API server takes to be there.

        Raises:
            KubeRejected: we may not, and that did not change within half a minute.
        """
        await self._insist(tuple(self._resources))
        self.synced = True

    async def run(self) -> None:
        """List everything every `every_s` seconds, and a kind soon after its watch began anew; until cancelled.

        Raises:
            KubeRejected: as `first`.
        """
        next_s = self._clock_s() + self._pause_s()
        while True:
            await asyncio.sleep(1.0)
            now_s = self._clock_s()
            self._check.look()
            if now_s >= next_s:
                next_s = now_s + self._pause_s()
                self._relist_at.clear()
                self._spoken.clear()
                await self._insist(tuple(self._resources))
                self._informer.queue_all()
            elif due := self._take_due(now_s):
                await self._insist(due)

    def _plan_relists(self, kind: Kind) -> None:
        """The watch of `kind` has begun anew. Mostly all have, and one that found nothing says nothing: those that do
        not speak up are listed when they surely are back, which is after kopf's longest pause and time-outs."""
        if kind in self._spoken:
            return  # one of the many objects of its list
        self._spoken.add(kind)
        now_s = self._clock_s()
        self._relist_at[kind] = [now_s + RELIST_AFTER_S]
        for other in self._resources:
            self._relist_at.setdefault(other, [now_s + after_s for after_s in RELIST_OTHERS_AFTER_S])

    def _take_due(self, now_s: float) -> tuple[Kind, ...]:
        """The kinds to be listed now."""
        due = []
        for kind, times in list(self._relist_at.items()):
            if times[0] > now_s:
                continue
            due.append(kind)
            self._spoken.discard(kind)
            later = [at for at in times if at > now_s]
            if later:
                self._relist_at[kind] = later
            else:
                del self._relist_at[kind]
        return tuple(due)

    async def _insist(self, kinds: tuple[Kind, ...]) -> None:
        left, refusals = list(kinds), 0
        while left:
            try:
                for scope in self._scopes:
                    await self._list(left[0], scope, expect=self.synced)
                left.pop(0)
                refusals = 0
            except KubeRejected:
                refusals += 1
                if refusals >= _REFUSALS:
                    raise
                await asyncio.sleep(_RETRY_S)
            except KubeError as exc:
                _logger.warning("a list failed, trying again: %s", exc)
                await asyncio.sleep(_RETRY_S)

    async def _list(self, kind: Kind, scope: str | None, *, expect: bool) -> None:
        resource = self._resources[kind]
        seen = self._informer.newest(kind)
        listed = await self._client.list(resource.collection(scope), selector=resource.selector)
        news = self._informer.observe_list(kind, listed.items, version=listed.version, scope=scope, seen=seen)
        if expect:
            self._check.expect(news)

    def _pause_s(self) -> float:
        return self._every_s * random.uniform(1 - _JITTER, 1 + _JITTER)
