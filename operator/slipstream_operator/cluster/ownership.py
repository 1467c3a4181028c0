"""One release per namespace: the holder of the namespace's Lease manages the pairs and policies there.

Two releases that manage the same pair would overwrite each other's Deployment without end. The holder of the Lease is a
release and not a process, so an upgrade or a restart continues at once. The Lease of a removed release expires.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable

from slipstream_core.kube.client import KubeClient
from slipstream_core.kube.errors import KubeError, KubeNotFound

from slipstream_operator.cluster.lease import Lease
from slipstream_operator.types import Note

LEASE_NAME = "slipstream-release"
REFUSED_REASON = "ManagedByAnotherRelease"
DURATION_S = 120
RENEW_S = 30.0  # no answer is older than this, so no write is based on an expired Lease

_LOOK_S = 10.0

_logger = logging.getLogger(__name__)


class Ownership:
    """The namespaces that this `release` manages. `clock_s` is monotonic."""

    def __init__(self, client: KubeClient, *, release: str, clock_s: Callable[[], float]) -> None:
        self._client, self._release, self._clock_s = client, release, clock_s
        self._leases: dict[str, Lease] = {}
        self._looked_s: dict[str, float] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def refusal(self, namespace: str) -> Note | None:
        """The reason why nothing may be changed in `namespace`; None if this release holds its Lease, or takes it now.

        Raises:
            KubeError: the Lease cannot be read or written, so nothing may be changed either.
        """
        async with self._locks[namespace]:
            if self._clock_s() - self._looked_s.get(namespace, -RENEW_S) >= RENEW_S:
                await self._look(namespace)
        holder = self._leases[namespace].held_by
        if holder == self._release:
            return None
        message = (
            f"release {holder} manages namespace {namespace} (Lease {LEASE_NAME}); release {self._release} changes "
            "nothing here: let one of them watch other namespaces"
        )
        return Note(type="Warning", reason=REFUSED_REASON, message=message)

    async def run(self) -> None:
        """Renew the held Leases until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            for namespace in tuple(self._looked_s):
                try:
                    await self.refusal(namespace)
                except KubeNotFound:  # the namespace was deleted
                    del self._looked_s[namespace]
                except KubeError as exc:
                    _logger.warning("the Lease %s/%s: %s", namespace, LEASE_NAME, exc)

    async def _look(self, namespace: str) -> None:
        lease = self._leases.get(namespace) or Lease(
            self._client,
            namespace=namespace,
            name=LEASE_NAME,
            holder=self._release,
            duration_s=DURATION_S,
            clock_s=self._clock_s,
        )
        before = lease.held_by
        now_s = self._clock_s()  # from before the write: however long that takes, the Lease expires later
        await lease.take()
        self._leases[namespace], self._looked_s[namespace] = lease, now_s
        if lease.held_by != before:
            level = logging.INFO if lease.held_by == self._release else logging.WARNING
            _logger.log(level, "release %s manages namespace %s", lease.held_by, namespace)
