"""Leader election: of several operators, only the holder of a Lease is active.

A leader that cannot renew its Lease ends before the Lease expires for the others.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import Callable

from slipstream_core.kube.client import KubeClient
from slipstream_core.kube.errors import KubeConflict, KubeError

from slipstream_operator.cluster.lease import Lease
from slipstream_operator.errors import LeadershipLost

DURATION_S = 15
RENEW_WITHIN_S = 10.0  # a leader that cannot renew for this long ends, before the others may take over
RETRY_S = 2.0

_logger = logging.getLogger(__name__)


def identity() -> str:
    """A unique name of this process."""
    return f"{os.environ.get('POD_NAME') or socket.gethostname()}-{uuid.uuid4().hex[:8]}"


class Leadership:
    """The Lease `name` in `namespace`. `clock_s` is monotonic."""

    def __init__(
        self, client: KubeClient, *, namespace: str, name: str, holder: str, clock_s: Callable[[], float]
    ) -> None:
        self._holder, self._clock_s = holder, clock_s
        self._lease = Lease(
            client, namespace=namespace, name=name, holder=holder, duration_s=DURATION_S, clock_s=clock_s
        )

    async def acquire(self) -> None:
        """Wait until this process leads."""
        while True:
            try:
                if await self._lease.take():
                    _logger.info("%s leads", self._holder)
                    return
            except KubeConflict:  # another process wrote first, but it need not be the leader
                pass
            except KubeError as exc:
                _logger.warning("the leader's Lease: %s", exc)
            await asyncio.sleep(RETRY_S)

    async def hold(self) -> None:
        """Renew until cancelled.

        Raises:
            LeadershipLost: another process leads, or the Lease could not be renewed in time.
        """
        renewed_s = self._clock_s()
        while True:
            await asyncio.sleep(RETRY_S)
            left_s = RENEW_WITHIN_S - (self._clock_s() - renewed_s)
            try:
                # A hanging renewal must end before the Lease expires.
                async with asyncio.timeout(max(left_s, 0.0)):
                    held = await self._lease.take()
            except (TimeoutError, KubeError) as exc:
                if self._clock_s() - renewed_s >= RENEW_WITHIN_S:
                    reason = f"its Lease could not be renewed for {RENEW_WITHIN_S:g} s"
                    raise LeadershipLost(f"{self._holder} lost the leadership: {reason}") from exc
                continue
            if not held:
                raise LeadershipLost(f"{self._holder} lost the leadership: another instance has taken over")
            renewed_s = self._clock_s()

    async def release(self) -> None:
        """Release the Lease, so that the next process takes over at once; after a failure it waits for the expiry."""
        try:
            await self._lease.give_back()
        except KubeError as exc:
            _logger.warning("the leader's Lease cannot be released: %s", exc)
