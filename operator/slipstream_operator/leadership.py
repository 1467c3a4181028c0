"""One operator at work where several run: a Lease that the leader renews, as Kubernetes' own components do it.

A leader that cannot renew ends before its Lease runs out for the others. Others' clocks do not count: a Lease has run
out when it was seen unchanged for its whole duration.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from slipstream_operator.cluster.api import KubeApi
from slipstream_operator.errors import ApiConflict, ApiError, LeadershipLost
from slipstream_operator.plan import KubeObject

LEASE_NAME = "slipstream-operator"
DURATION_S = 15
RENEW_WITHIN_S = 10.0  # a leader that does not get through for this long gives up: before the others may take over
RETRY_S = 2.0

_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S.%fZ"

_logger = logging.getLogger(__name__)


def identity() -> str:
    """This process, and no other one that has been or will be."""
    return f"{os.environ.get('POD_NAME') or socket.gethostname()}-{uuid.uuid4().hex[:8]}"


class Leadership:
    """The Lease `slipstream-operator` in `namespace`. `clock_s` is monotonic."""

    def __init__(self, api: KubeApi, *, namespace: str, holder: str, clock_s: Callable[[], float]) -> None:
        self._api, self._holder, self._clock_s = api, holder, clock_s
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._collection}/{LEASE_NAME}"
        self._seen: tuple[str, float] = ("", clock_s())

    async def acquire(self) -> None:
        """Wait until this process leads, however long that takes."""
        while True:
            try:
                if await self._try():
                    _logger.info("%s leads", self._holder)
                    return
            except ApiConflict:  # Somebody else wrote first, which need not mean that they lead.
                pass
            except ApiError as exc:
                _logger.warning("the leader's Lease: %s", exc)
            await asyncio.sleep(RETRY_S)

    async def hold(self) -> None:
        """Renew until cancelled.

        Raises:
            LeadershipLost: somebody else leads, or the Lease could not be renewed in time.
        """
        renewed_s = self._clock_s()
        while True:
            await asyncio.sleep(RETRY_S)
            left_s = RENEW_WITHIN_S - (self._clock_s() - renewed_s)
            try:
                # A renewal that hangs must not outlive the Lease.
                async with asyncio.timeout(max(left_s, 0.0)):
                    held = await self._try()
            except (TimeoutError, ApiError) as exc:
                if self._clock_s() - renewed_s >= RENEW_WITHIN_S:
                    reason = f"its Lease could not be renewed for {RENEW_WITHIN_S:g} s"
                    raise LeadershipLost(f"{self._holder} leads no more: {reason}") from exc
                continue
            if not held:
                raise LeadershipLost(f"{self._holder} leads no more: somebody else has taken over")
            renewed_s = self._clock_s()

    async def release(self) -> None:
        """Let the next one take over at once; a failure only makes it wait."""
        try:
            lease = await self._api.get(self._path)
            if lease is not None and _spec_of(lease).get("holderIdentity") == self._holder:
                spec = {**_spec_of(lease), "holderIdentity": "", "leaseDurationSeconds": 1}
                await self._api.replace(self._path, {**lease, "spec": spec})
        except ApiError as exc:
            _logger.warning("the leader's Lease cannot be given back: %s", exc)

    async def _try(self) -> bool:
        """Take or renew the Lease; whether it is ours now.

        Raises:
            ApiConflict: somebody has written it meanwhile: of two that try at once, the API server refuses one.
        """
        lease = await self._api.get(self._path)
        if lease is None:
            body: KubeObject = {"metadata": {"name": LEASE_NAME}, "spec": self._spec({})}
            body |= {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
            await self._api.create(self._collection, body)
        elif self._is_free(lease):
            await self._api.replace(self._path, {**lease, "spec": self._spec(_spec_of(lease))})
        else:
            return False
        return True

    def _is_free(self, lease: KubeObject) -> bool:
        spec = _spec_of(lease)
        if spec.get("holderIdentity") in ("", None, self._holder):
            return True
        version = lease["metadata"]["resourceVersion"]
        if version != self._seen[0]:
            self._seen = (version, self._clock_s())
        return self._clock_s() - self._seen[1] > float(spec.get("leaseDurationSeconds") or DURATION_S)

    def _spec(self, before: dict[str, Any]) -> dict[str, Any]:
        now = datetime.now(UTC).strftime(_TIME_FORMAT)
        renewed = before.get("holderIdentity") == self._holder
        return {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": DURATION_S,
            "acquireTime": (before.get("acquireTime") or now) if renewed else now,
            "renewTime": now,
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (not renewed),
        }


def _spec_of(lease: KubeObject) -> dict[str, Any]:
    """Empty where somebody made the Lease without one."""
    spec: dict[str, Any] = lease.get("spec") or {}
    return spec
